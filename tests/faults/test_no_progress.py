"""A run that cannot go on ends with a reason, and goes on once the cause is repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fedquilt_common.errors import RunFailedError
from fedquilt_common.wire.messages import FailedMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator import coordinator
from fedquilt_server.coordinator.claims import Claims

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")


class Clock:
    """The seconds of listening by which a coordinator finds that a run has stalled; a test moves them."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, part: float) -> None:
        """Let a part of the patience with a stalled run pass."""
        self.now += part * coordinator.STALL_SECONDS


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(Claims, "listened", property(lambda _: made.now))
    return made


def let_stall(stage: Stage, clock: Clock) -> None:
    """Play until the run ends because it has stalled: time passes once all the others have replied."""

    def turn() -> bool:
        if stage.board.current.failing and stage.board.current.replies == 2:
            clock.advance(1.0)
        return stage.turn()

    stage.play_with(turn)


def not_finite(player: Player, _: RoundMessage) -> None:
    model = player.model()
    assert model is not None
    player.send(player.pack(2, arrays={name: x * np.float32("nan") for name, x in model.items()}))


def of_another_layout(player: Player, _: RoundMessage) -> None:
    player.send(player.pack(2, arrays={"other": np.zeros(3, np.float32)}))


def with_more(player: Player, _: RoundMessage) -> None:
    """Send so large an array beside the expected ones that the size alone is refused."""
    player.send(player.pack(2, arrays={**(player.model() or {}), "control": np.zeros(30_000, np.float32)}))


def failed(player: Player, message: RoundMessage) -> None:
    report = FailedMessage(
        agent=player.name, run=message.run, client=2, round=message.round, exchange=message.exchange, reason="no luck"
    )
    player.say(TOPICS.telemetry(player.name), report.encode())


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (not_finite, "not finite"),
        (of_another_layout, "does not expect: 'other'"),
        (with_more, "larger than .* not expect: 'control'; list them in Task.expect"),
        (failed, "no luck"),
    ],
)
def test_a_client_that_always_replies_garbage_ends_the_run_with_its_reason(
    garbage: object, reason: str, stage: Stage, undisturbed: str, clock: Clock
) -> None:
    stage.ways[2] = garbage  # type: ignore[assignment]
    with pytest.raises(RunFailedError, match=rf"round 1 .*1 of 3 clients failed \(client 2: .*{reason}.*--resume"):
        let_stall(stage, clock)
    assert stage.board.current.phase == "failed"
    assert stage.board.current.failing == 1
    del stage.ways[2]
    stage.forget_answers()  # the repaired agents restart
    with stage.closing(stage.coordinator()) as again:
        again.execute(stage.turn)
    assert stage.sha256 == undisturbed


def test_a_failure_that_is_reported_again_counts_and_is_journaled_once(stage: Stage, clock: Clock) -> None:
    """Agents repeat a failure, because the first message may be lost. It does not give the run more time."""
    reports: list[RoundMessage] = []
    sent: list[Player] = []

    def fail_again() -> bool:
        if reports:
            sent.append(stage.players["jetson"])
            failed(sent[-1], reports[0])
        if stage.board.current.failing and stage.board.current.replies == 2:
            clock.advance(0.3)
        return stage.turn()

    stage.ways[2] = lambda _, message: reports.append(message)
    with pytest.raises(RunFailedError, match="no luck"):
        stage.play_with(fail_again)
    assert len(sent) > 3
    assert [refusal.client for refusal in stage.refusals()] == [2]


@pytest.mark.parametrize("boot", [1, 2], ids=["connected again", "restarted"])
def test_an_agent_that_retries_keeps_the_run_alive(boot: int, stage: Stage, undisturbed: str, clock: Clock) -> None:
    """Its failure was that of an attempt before, and its training may take long."""
    restarted = False

    def turn() -> bool:
        nonlocal restarted
        if stage.board.current.failing and not restarted:
            restarted = True
            stage.players["jetson"].appear((2,), boot=boot)
        elif restarted and 2 in stage.ways and not stage.board.current.failing:
            clock.advance(0.5)
            if clock.now > 3 * coordinator.STALL_SECONDS:
                del stage.ways[2]
                stage.forget_answers()
        return stage.turn()

    stage.ways[2] = failed
    stage.play_with(turn)
    assert stage.sha256 == undisturbed


def test_failures_of_clients_of_another_agent_do_not_count(stage: Stage, undisturbed: str) -> None:
    def lie(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 1:
            failed(player, message)  # of client 2, which jetson hosts

    seen: list[int] = []

    def turn() -> bool:
        seen.append(stage.board.current.failing)
        return stage.turn(lie)

    stage.play_with(turn)
    assert stage.sha256 == undisturbed
    assert not any(seen)
