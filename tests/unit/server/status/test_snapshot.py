"""The snapshot as JSON, which the page and other programs fetch."""

from __future__ import annotations

from fedquilt_server.status.snapshot import BoardStatus


def test_a_list_of_many_clients_is_short_in_json() -> None:
    """The page, `simulate` and other programs fetch the snapshot every second or so."""
    many = BoardStatus(agent="pi", clients=list(range(400_000)))
    assert many.model_dump(mode="json")["clients"] == [[0, 399_999]]
    assert BoardStatus.model_validate_json(many.model_dump_json()).clients == many.clients
    few = BoardStatus(agent="pi", clients=list(range(1000)))
    assert few.model_dump(mode="json")["clients"] == list(range(1000))
