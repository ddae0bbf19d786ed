"""The event stream of whole snapshots: each round once, only changes, and the end of the run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from tests.support.visitors import stops_at_once

from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web import snapshot_stream
from fedquilt_server.web.server import PageServer

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
ROWS = [RoundResult.model_validate({**ZEROS, "round": n}) for n in range(1, 5)]


def events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the data of each event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")


def test_each_round_comes_once_and_the_last_event_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_stream, "HEARTBEAT_SECONDS", 0.1)
    replies = [ReplyRow(round=4, agent="pi", outcome="accepted")]
    store = StatusStore(Snapshot(run="r", history=ROWS[:2], reply_rows=replies))
    with PageServer(store) as server, httpx.stream("GET", f"{server.url}api/v1/stream?since=1", timeout=60) as answer:
        found = events(answer.iter_lines())
        first = json.loads(next(found)[1])
        assert ([row["round"] for row in first["history"]], "reply_rows" in first) == ([2], False)
        assert next(found)[0] == "clock"
        store.update(history=ROWS[:3])
        second = next(data for name, data in found if name == "snapshot")
        assert [row["round"] for row in json.loads(second)["history"]] == [3]
        store.update(history=ROWS, phase="finished")
        closing = threading.Thread(target=stops_at_once, args=(server, monkeypatch))
        closing.start()
        rest = [json.loads(data) for name, data in found if name == "snapshot"]
        closing.join()
    assert [row["round"] for state in rest for row in state["history"]] == [4]
    assert rest[-1]["phase"] == "finished"
