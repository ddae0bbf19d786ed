"""The snapshot as JSON, which the page and other programs fetch."""

from __future__ import annotations

import pytest

from fedquilt_server.status.snapshot import BoardStatus


def test_a_list_of_many_clients_is_short_in_json() -> None:
    """The page, `simulate` and other programs fetch the snapshot every second or so."""
    many = BoardStatus(agent="pi", clients=list(range(400_000)))
    assert many.model_dump(mode="json")["clients"] == [[0, 399_999]]
    assert BoardStatus.model_validate_json(many.model_dump_json()).clients == many.clients
    few = BoardStatus(agent="pi", clients=list(range(1000)))
    assert few.model_dump(mode="json")["clients"] == list(range(1000))


def test_a_short_json_does_not_become_a_list_that_fills_the_memory() -> None:
    with pytest.raises(ValueError, match="more than 400000 numbers"):
        BoardStatus.model_validate_json('{"agent": "pi", "clients": [[0, 999999]]}')
