"""The snapshot as JSON, which the page and other programs fetch."""

from __future__ import annotations

import pytest

from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore


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


def test_no_board_of_a_run_that_has_ended_trains() -> None:
    """The last telemetry of a board reports its last training, and may come after the end."""
    works = BoardStatus(agent="pi", training={0: 0.9})
    store = StatusStore(Snapshot(phase="training", boards=[works]))
    store.update(round=2)
    assert store.current.boards == [works]
    store.update(phase="finished")
    assert store.current.boards == [works.model_copy(update={"training": {}})]
    store.update(boards=[works])
    assert store.current.boards[0].training == {}
    store.replace(Snapshot(phase="failed", boards=[works]))
    assert (store.current.boards[0].training, store.current.version) == ({}, 4)
