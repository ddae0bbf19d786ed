"""Exchanges that close without a client, and its reply when it arrives later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.messages import AgentPresence, FailedMessage, ReceiptMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator.driver import Driver
from fedquilt_server.round.events import Checkpoint
from fedquilt_server.round.states import RunState
from fedquilt_server.runs import clock
from fedquilt_server.status.run_event import RunEvent

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")


def with_quorum(stage: Stage, quorum: int, deadline: float, **more: str) -> None:
    raw = stage.experiment.model_dump(mode="json")
    raw["participation"] = {**raw["participation"], "quorum": quorum, "deadline": deadline, **more}
    stage.experiment = Experiment.model_validate(raw)


def leave(player: Player) -> None:
    farewell = AgentPresence(agent=player.name, online=False, boot=1)
    player.transport.publish(TOPICS.presence(player.name), farewell.encode(), retain=True)


def test_a_late_reply_is_late_also_while_the_run_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quorum closes round 1, too few clients are left for round 2, and then the missing reply arrives."""
    with_quorum(stage, quorum=2, deadline=1e6)
    now, passed = clock.now, [0.0]
    monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
    present, missing = stage.players["pi"], stage.players["jetson"]
    stage.arrive()
    coordinator = stage.coordinator()
    steps = iter(("reply", "deadline", "late", "stop"))
    step = next(steps)

    def turn() -> bool:
        nonlocal step
        for player in (present, missing):
            player.listen()
        if step == "reply" and present.model() is not None and missing.model() is not None:
            for client in (0, 1):
                present.send(present.pack(client))
            missing.sent["late"] = missing.pack(2)
            leave(present)
            step = next(steps)
        elif step == "deadline" and "pi" not in coordinator.machine.agents:
            passed[0] = 1e6
            step = next(steps)
        elif step == "late" and coordinator.machine.run_state is RunState.WAITING:
            missing.send(missing.sent["late"])
            step = next(steps)
        return step == "stop" and any(isinstance(message, ReceiptMessage) for message in missing.inbox)

    with stage.closing(coordinator):
        coordinator.execute(turn)
        (receipt,) = missing.receipts
        assert (receipt.client, receipt.outcome, receipt.reason) == (2, "late", "round 1, exchange 0 is closed")
        assert (stage.board.current.accepted, stage.board.current.late) == (2, 1)
        assert coordinator.run.watch.first_chunk is None  # the next round's receiving has not begun
        assert files_below(stage.folder / "blobs" / "replies") == []


def files_below(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_deadline_without_the_quorum_is_reported(stage: Stage) -> None:
    """The round waits for the missing reply; nothing else says that its deadline has passed."""
    with_quorum(stage, quorum=3, deadline=0.3)
    stage.ways[2] = lambda player, message: None

    def turn() -> bool:
        stage.turn()
        return any(event.kind == "deadline" for event in stage.board.current.events)

    stage.arrive()
    with stage.closing(stage.coordinator()) as coordinator:
        coordinator.execute(turn)
    (told,) = [event for event in stage.board.current.events if event.kind == "deadline"]
    assert told.text == (
        "The deadline passed with 2 of 3 replies; too few for the quorum, so the round waits for client 2"
    )


class CrashError(Exception):
    """The coordinator dies here."""


def crash(driver: Driver, seq: int, command: Checkpoint) -> None:
    raise CrashError


@pytest.mark.parametrize("crashes", [False, True])
def test_a_round_without_a_client_that_failed_is_reported(
    crashes: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes long before its deadline. The event names the client, once a round, even after a restart."""
    with_quorum(stage, quorum=2, deadline=1e6, failures="skip")
    stage.ways[2] = fail
    if crashes:
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "_checkpoint", crash)
            with pytest.raises(CrashError):
                stage.play()
    stage.play()
    events = [RunEvent.model_validate_json(line) for line in (stage.folder / "events.jsonl").read_text().splitlines()]
    told = [(event.round, event.text) for event in events if event.kind == "skipped"]
    text = "Failed: client 2. The round continues with 2 of 3 replies"
    assert told == [(1, text), (2, text)]


def fail(player: Player, message: RoundMessage) -> None:
    report = FailedMessage(
        agent=player.name, run=message.run, client=2, round=message.round, exchange=message.exchange, reason="no luck"
    )
    player.say(TOPICS.telemetry(player.name), report.encode())
