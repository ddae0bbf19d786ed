"""A coordinator without its broker, or whose process is frozen, for longer than the deadline of the open exchange."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.transport import Incoming
from fedquilt_server.history.log_files import read_events
from fedquilt_server.round.events import CutOff, Replied

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

    from fedquilt_server.coordinator.coordinator import Coordinator

DEADLINE = 0.6
GAP = 1.5


class FrozenOnce(queue.SimpleQueue[Incoming]):
    """A queue in which the next wait takes ``GAP`` seconds longer, as if the process were stopped in it."""

    frozen = False

    def get(self, block: bool = True, timeout: float | None = None) -> Incoming:
        if not self.frozen:
            self.frozen = True
            time.sleep(GAP)
        return super().get(block, timeout)


def freeze(coordinator: Coordinator) -> None:
    held, frozen = coordinator._inbox.messages, FrozenOnce()
    while not held.empty():
        frozen.put(held.get())
    coordinator._inbox.messages = frozen


@pytest.mark.parametrize("case", ["no broker", "frozen"])
def test_a_reply_after_the_gap_counts(stage: Stage, undisturbed: str, case: str) -> None:
    """The quorum has replied before the gap, so a deadline that passed in it would close the round without client 2."""
    raw: dict[str, Any] = stage.experiment.model_dump(mode="json")
    raw["participation"] |= {"quorum": 2, "deadline": DEADLINE}
    stage.experiment = Experiment.model_validate(raw)
    held: list[tuple[Player, RoundMessage]] = []
    stage.ways[2] = lambda player, message: held.append((player, message))
    stage.arrive()
    coordinator = stage.coordinator()
    since = 0.0

    def turn() -> bool:
        nonlocal since
        stage.turn()
        exchange = coordinator.machine.exchange
        if not since and held and exchange is not None and len(exchange.replies) == 2:
            since = time.monotonic()
            if case == "frozen":
                freeze(coordinator)
            else:
                coordinator._transport.break_off()  # type: ignore[attr-defined]
        elif since and time.monotonic() > since + GAP and held:
            del stage.ways[2]
            if case == "no broker":
                coordinator._transport.connect()
            for player, message in held:
                assert player.round is not None
                assert player.round.round == message.round
                player.send(player.pack(2))
            held.clear()
        return False

    with stage.closing(coordinator):
        coordinator.execute(turn)
        events = [event for _, event in coordinator.run.folder.journal.events_after(0)]
    (gap,) = [event for event in events if isinstance(event, CutOff)]
    assert GAP - 0.1 < gap.seconds < GAP + 5
    assert [event.client for event in events if isinstance(event, Replied)].count(2) == 2
    assert stage.sha256 == undisturbed
    (told,) = [event for event in read_events(stage.folder / "events.jsonl") if event.kind == "cut off"]
    assert told.text == f"No message could arrive for {gap.seconds:.0f} s; the deadline is later by that time"
