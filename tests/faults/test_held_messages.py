"""A message that is handled gives its room back at once, though its acknowledgement waits for the disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.transport import Deliver, Incoming, MqttMessage
from fedquilt_server.round.events import Event, Replied

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Stage


def test_a_handled_message_is_freed_before_an_earlier_one_is_acknowledged(stage: Stage, undisturbed: str) -> None:
    done: list[tuple[str, int]] = []

    def spy(deliver: Deliver) -> Deliver:
        numbers = iter(range(1_000_000))

        def watched(incoming: Incoming) -> None:
            if isinstance(incoming, MqttMessage):
                number, ack = next(numbers), incoming.ack

                def acknowledge() -> None:
                    done.append(("ack", number))
                    ack()

                incoming = replace(incoming, ack=acknowledge, free=lambda: done.append(("free", number)))
            deliver(incoming)

        return watched

    stage.arrive()
    with stage.closing(stage.coordinator(spy)) as coordinator:
        coordinator.execute(stage.turn)
    assert stage.sha256 == undisturbed
    place = {what: at for at, what in enumerate(done)}
    count = len(done) // 2
    assert len(place) == len(done) == 2 * count
    assert all(place["free", number] < place["ack", number] for number in range(count))
    acks = [number for what, number in done if what == "ack"]
    assert acks == sorted(acks)
    assert any(place["free", number + 1] < place["ack", number] for number in range(count - 1))


def test_a_reply_is_journaled_after_its_file_is_on_the_disk(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the process would not show the difference, because the system keeps what it was to write."""
    fsync, synced, journaled = os.fsync, [0], [0]

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.02)
            synced[0] += 1
        fsync(descriptor)

    stage.arrive()
    with stage.closing(stage.coordinator()) as coordinator:
        append_all = coordinator.run.append_all

        def note(events: Sequence[Event]) -> list[tuple[int, Event]]:
            journaled[0] += sum(isinstance(event, Replied) for event in events)
            assert journaled[0] <= synced[0]
            return append_all(events)

        monkeypatch.setattr(os, "fsync", slow)
        monkeypatch.setattr(coordinator.run, "append_all", note)
        coordinator.execute(stage.turn)
    assert stage.sha256 == undisturbed
    assert journaled == synced == [6]
