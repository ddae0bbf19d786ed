"""What the uplink holds of replies that are unfinished or refused: a hostile agent can send them without end."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.server.coordinator.test_uplink_labels import TASK, open_uplink, send_chunks, write_reply

from fedquilt_common.flood_control.limits import TRANSFERS_PER_CLIENT
from fedquilt_server.coordinator import uplink as module
from fedquilt_server.round.events import Event, Rejected, Replied


def test_of_many_replies_that_a_client_begins_it_can_finish_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it has given up, such as before it restarted, are older."""
    seconds = count(1000.0)
    monkeypatch.setattr(module, "clock", SimpleNamespace(now=lambda: next(seconds)))
    events = list[Event]()
    uplink = open_uplink(tmp_path, TASK, events.append)
    replies = [write_reply(tmp_path / str(n), accuracy=n / 10) for n in range(2 * TRANSFERS_PER_CLIENT)]
    for reply in replies:
        send_chunks(uplink, reply, chunk=40, most=1)
    assert len(list((tmp_path / "run" / "partial").iterdir())) == TRANSFERS_PER_CLIENT
    oldest_kept = replies[-TRANSFERS_PER_CLIENT]
    send_chunks(uplink, oldest_kept, chunk=40, first=1)
    uplink.flush()
    (event,) = events
    assert isinstance(event, Replied)
    assert event.digest == oldest_kept.digest


def test_refused_replies_without_end_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_KEPT", 3)
    events = list[Event]()
    uplink = open_uplink(tmp_path, TASK, events.append)
    for number in range(20):
        send_chunks(uplink, write_reply(tmp_path / str(number), accuracy=2.0 + number))
    assert [type(event) for event in events] == [Rejected] * 20
    assert (len(uplink._refused), len(uplink._journaled)) == (3, 3)
