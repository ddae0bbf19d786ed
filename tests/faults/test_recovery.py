"""The coordinator crashes at every point where it matters and restarts: no reply is lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.runs import reply_places

from fedquilt_common.experiment.sections import Budget
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.transport import Deliver, MqttMessage
from fedquilt_server.history.log_files import read_events
from fedquilt_server.round.events import Replied
from fedquilt_server.runs.reply_files import ReplyPlace
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.status.snapshot import StatusStore

if TYPE_CHECKING:
    from tests.faults.conftest import Stage

    from fedquilt_server.coordinator.coordinator import Coordinator


class DiedError(BaseException):
    """A simulated kill: no error handler of the program may catch it."""


class Reaper:
    """Counts the points at which a crash matters, and crashes at the chosen one."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.points: list[str] = []
        self.die: Callable[[], None] = lambda: None
        self.unacknowledged = 0
        """Accepted replies whose last chunk the broker will deliver again."""

    def reach(self, name: str) -> None:
        self.points.append(name)
        if len(self.points) == self.at:
            self.die()
            raise DiedError(name)

    def around(self, owner: Any, method: str, name: str | None = None) -> None:
        """Add a point before and one after each call of a method."""
        call = getattr(owner, method)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.reach(f"before {name or method}")
            result = call(*arguments, **named)
            if name == "append":
                self.unacknowledged += sum(isinstance(event, Replied) for event in arguments[0])
            self.reach(f"after {name or method}")
            return result

        setattr(owner, method, watched)

    def wrap(self, deliver: Deliver) -> Deliver:
        """Add a point before and one after the acknowledgement of each message."""

        def watched(incoming: object) -> None:
            if isinstance(incoming, MqttMessage):
                incoming = replace(incoming, ack=self._ack(incoming))
            deliver(incoming)  # type: ignore[arg-type]

        return watched

    def _ack(self, message: MqttMessage) -> Callable[[], None]:
        header = ChunkHeader.decode(message.header) if "/replies/" in message.topic else None
        is_last = header is not None and header.index == header.count - 1

        def watched() -> None:
            self.reach("before ack")
            message.ack()
            self.unacknowledged = max(0, self.unacknowledged - is_last)
            self.reach("after ack")

        return watched


def attach(reaper: Reaper, coordinator: Coordinator, stage: Stage) -> None:
    """Add points around every durable action of a coordinator."""
    run = coordinator.run
    reaper.around(run.folder.journal, "append_all", "append")
    reaper.around(run.folder.journal, "save")
    reaper.around(run.folder.blobs, "clean")
    reaper.around(run, "finish")
    reaper.around(run.folder, "close")

    def die() -> None:  # the connection breaks, so that no further message is sent
        session = stage.broker.sessions["coordinator"]
        session.client = None

    reaper.die = die


def until_it_dies(stage: Stage, at: int) -> Reaper:
    """Run with a crash at point ``at``; with 0 there is no crash."""
    reaper = Reaper(at)
    coordinator = stage.coordinator(reaper.wrap)
    attach(reaper, coordinator, stage)
    with stage.closing(coordinator):
        if at:
            with pytest.raises(DiedError):
                coordinator.execute(stage.turn)
        else:
            coordinator.execute(stage.turn)
    return reaper


def go_on(stage: Stage) -> None:
    coordinator = stage.coordinator()
    with stage.closing(coordinator):
        if not coordinator.run.folder.closed:  # as the command line does
            coordinator.execute(stage.turn)
        assert coordinator.run.folder.closed
        stage.rows = coordinator.run.folder.journal.results()


@pytest.fixture(scope="module")
def points(storage: str, tmp_path_factory: pytest.TempPathFactory, make_stage: Callable[..., Stage]) -> list[str]:
    """Return the points of a run without a crash."""
    stage = make_stage(tmp_path_factory.mktemp("points"))
    stage.arrive()
    return until_it_dies(stage, 0).points


def test_every_kind_of_point_is_tried(points: list[str], storage: str) -> None:
    assert {name.partition(" ")[2] for name in points} == {"append", "save", "clean", "ack", "finish", "close"}
    assert points.count("before append") == 2 + (3 if storage == "files" else 1) * 2
    assert points.count("after save") == 2


def test_a_crash_anywhere_changes_nothing(
    points: list[str], undisturbed: str, tmp_path_factory: pytest.TempPathFactory, make_stage: Callable[..., Stage]
) -> None:
    over = max(number for number, name in enumerate(points, 1) if name == "after append")
    for at, name in enumerate(points, 1):
        stage = make_stage(tmp_path_factory.mktemp("run"))
        stage.arrive()
        reaper = until_it_dies(stage, at)
        assert reaper.points == points[:at]
        go_on(stage)
        where = f"point {at}: {name}"
        assert stage.sha256 == undisturbed, where
        assert [row.clients for row in stage.rows] == [3, 3], where
        assert [(row.late, row.rejected) for row in stage.rows] == [(0, 0), (0, 0)], where
        # with the last reply in the journal the run is over, and no more messages are taken
        expected = 0 if at >= over else reaper.unacknowledged
        assert sum(row.duplicates for row in stage.rows) == expected, where
        left = {topic.rpartition("lab/")[2] for topic in stage.broker.retained}
        assert left == {"coordinator", "end", "agents/pi/presence", "agents/jetson/presence"}, where
        for player in stage.players.values():
            player.listen()
            assert player.ended, where


def test_a_run_ends_once_when_its_budget_is_used_up(
    tmp_path_factory: pytest.TempPathFactory, make_stage: Callable[..., Stage]
) -> None:
    """The first of five rounds uses it up, wherever the coordinator crashes around the end of this round."""
    limits = {"rounds": 5, "evaluate_every": 3, "budget": Budget(hours=1e-9)}
    reason = "the budget of 0.00 s is used up after round 1"

    def begin() -> Stage:
        stage = make_stage(tmp_path_factory.mktemp("run"))
        stage.experiment = stage.experiment.model_copy(update=limits)
        stage.arrive()
        return stage

    points = until_it_dies(begin(), 0).points
    for at in range(len(points) - points[::-1].index("before append"), len(points) + 1):
        stage = begin()
        until_it_dies(stage, at)
        go_on(stage)
        result, where = read_result(stage.folder), f"point {at}: {points[at - 1]}"
        assert (result.status, result.reason, len(result.rounds)) == ("finished", reason, 1), where
        kinds = [event.kind for event in read_events(stage.folder / "events.jsonl")]
        assert "finished" in kinds, where
        for player in stage.players.values():
            player.listen()
            assert player.ended, where


@pytest.mark.parametrize("first", ["after append", "before ack", "before save"])
def test_two_crashes_in_one_round(first: str, points: list[str], undisturbed: str, stage: Stage) -> None:
    stage.arrive()
    at = [number for number, name in enumerate(points, 1) if name == first][-1]
    until_it_dies(stage, at)
    until_it_dies(stage, 1)
    go_on(stage)
    assert stage.sha256 == undisturbed
    assert [(row.clients, row.late, row.rejected) for row in stage.rows] == [(3, 0, 0), (3, 0, 0)]


@pytest.mark.parametrize("rounds", [0, 1], ids=["from the journal", "from a checkpoint"])
def test_a_resumed_run_shows_its_boards_before_any_of_them_reports(rounds: int, stage: Stage) -> None:
    def is_training() -> bool:
        stage.turn()
        return len(stage.board.current.history) == rounds and stage.board.current.phase == "training"

    stage.arrive()
    with stage.closing(stage.coordinator()) as coordinator:
        coordinator.execute(is_training)
    stage.board = StatusStore()
    with stage.closing(stage.coordinator()) as coordinator:
        coordinator.execute(lambda: True)
    shown = [(board.agent, board.clients, board.online) for board in stage.board.current.boards]
    assert shown == [("jetson", [2], True), ("pi", [0, 1], True)]


def test_replies_that_arrive_with_a_damaged_one_are_sent_again(
    undisturbed: str, stage: Stage, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    """The first one on the disk is damaged before the exchange closes; in a segment, with the others behind it."""
    stage.arrive()
    coordinator = stage.coordinator()
    blobs = coordinator.run.folder.blobs
    sync, damaged = blobs.sync_replies, list[ReplyPlace]()

    def sync_and_damage() -> None:
        sync()
        if not damaged:
            place = next(iter(reply_places(blobs.replies.folder)))
            with place.path.open("r+b") as file:
                file.seek(place.start + 500)
                file.write(b"damage")
            damaged.append(place)

    monkeypatch.setattr(blobs, "sync_replies", sync_and_damage)
    with stage.closing(coordinator):
        coordinator.execute(stage.offer)
        results = coordinator.run.folder.journal.results()
    assert (damaged[0].size is None) == (storage != "segments")
    assert stage.sha256 == undisturbed
    assert [row.replies for row in results] == [3, 3]


def test_a_recovery_deletes_the_replies_that_a_crash_left(points: list[str], stage: Stage) -> None:
    """Round 2 has begun when the coordinator dies, so nothing needs the replies to round 1."""
    stage.arrive()
    _, at, *_ = [number for number, name in enumerate(points, 1) if name == "before clean"]
    until_it_dies(stage, at)
    replies = stage.folder / "blobs" / "replies"
    assert list(replies.iterdir())
    with stage.closing(stage.coordinator()) as coordinator:
        coordinator.execute(lambda: True)
        assert (coordinator.machine.done, list(replies.iterdir())) == (1, [])
