"""A message that is handled gives its room back at once, though its acknowledgement waits for the disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedquilt_common.wire.transport import Deliver, Incoming, MqttMessage

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
