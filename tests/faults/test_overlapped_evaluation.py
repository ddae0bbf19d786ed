"""A round is evaluated while boards work on the next one, also if the coordinator dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.errors import AlgorithmError, RunFailedError
from fedquilt_common.wire.messages import CoordinatorPresence
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.runs.run import ActiveRun

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.conftest import Player, Stage

    from fedquilt_common.algorithm_api import State

pytestmark = pytest.mark.quick


class Examiner:
    """Evaluates when it may: the accuracy is the number of the round / 10.

    Attributes:
        may: evaluations wait for it.
        error: is raised by each, if it is not None.
        states: the mean of the state's first array, by evaluation.
    """

    def __init__(self) -> None:
        self.may = threading.Event()
        self.error: Exception | None = None
        self.states: list[float] = []

    def evaluation_of(self, state: State, done: int) -> Callable[[], Mapping[str, float]]:

        def evaluate() -> Mapping[str, float]:
            assert self.may.wait(60)
            if self.error is not None:
                raise self.error
            self.states.append(float(next(iter(state.arrays.values())).mean()))
            return {"accuracy": done / 10}

        return evaluate


@pytest.fixture
def examiner(monkeypatch: pytest.MonkeyPatch) -> Examiner:
    """The stage's runs evaluate each round with this examiner; each evaluation but the last overlaps."""
    examiner = Examiner()
    monkeypatch.setattr(ActiveRun, "needs_evaluation", lambda *_: True)
    monkeypatch.setattr("fedquilt_server.runs.run.OVERLAP_SECONDS", 0.0)
    monkeypatch.setattr(
        "fedquilt_server.round.machine.Machine.evaluation_of",
        lambda machine, state, done: examiner.evaluation_of(state, done),
    )
    return examiner


def test_boards_get_the_next_round_before_the_scores_of_the_last(
    stage: Stage, undisturbed: str, examiner: Examiner
) -> None:
    shown: list[list[int]] = []

    def release(_: Player, message: RoundMessage) -> None:
        if message.round == 2:
            shown.append([row.round for row in stage.board.current.history])
            examiner.may.set()

    stage.play(release)
    assert shown[0] == []
    assert [row.accuracy for row in stage.rows] == [0.1, 0.2]
    assert [row.evaluated_afterwards for row in stage.rows] == [True, False]
    assert [row.accuracy for row in stage.board.current.history] == [0.1, 0.2]
    assert stage.sha256 == undisturbed


@pytest.mark.parametrize(
    ("least", "on_divergence", "overlapped"),
    [
        (1e-9, "warn", [False, True, False]),  # the first shows how long one takes; no round follows the last
        (1e9, "warn", [False, False, False]),
        (1e-9, "stop", [False, False, False]),
    ],
)
def test_an_evaluation_overlaps_if_it_takes_long_and_the_next_round_comes_in_any_case(
    least: float,
    on_divergence: str,
    overlapped: list[bool],
    make_stage: Callable[..., Stage],
    tmp_path: Path,
    examiner: Examiner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedquilt_server.runs.run.OVERLAP_SECONDS", least)
    examiner.may.set()
    stage = make_stage(tmp_path / "stage", rounds=3)
    stage.experiment = stage.experiment.model_copy(update={"on_divergence": on_divergence})
    stage.play()
    assert [row.evaluated_afterwards for row in stage.rows] == overlapped
    assert [row.accuracy for row in stage.rows] == [0.1, 0.2, 0.3]


def test_an_error_of_an_evaluation_beside_a_round_ends_the_run_with_a_farewell(
    stage: Stage, examiner: Examiner
) -> None:
    examiner.error = AlgorithmError("own.evaluate, round 1: broken")
    examiner.may.set()
    with pytest.raises(AlgorithmError, match="round 1: broken"):
        stage.play()
    said, _ = stage.broker.retained[Topics("lab").coordinator]
    assert not CoordinatorPresence.model_validate_json(said).online
    examiner.error = None
    stage.forget_answers()
    with stage.closing(stage.coordinator()) as again:
        again.execute(stage.offer)
        assert [row.accuracy for row in again.run.folder.journal.results()] == [0.1, 0.2]


def test_an_evaluation_that_fails_after_the_run_has_does_not_hide_why_and_the_files_are_written(
    stage: Stage, examiner: Examiner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.arrive()
    examiner.error = AlgorithmError("own.evaluate, round 1: broken")
    coordinator = stage.coordinator()
    written: list[object] = []
    monkeypatch.setattr(coordinator.run.result_files, "catch_up", written.append)

    def fail(_: Player, message: RoundMessage) -> None:
        if message.round == 2:
            examiner.may.set()
            raise RunFailedError("no quorum")

    with stage.closing(coordinator), pytest.raises(RunFailedError, match="no quorum"):
        coordinator.execute(lambda: stage.turn(fail))
    assert len(written) == 1
    assert (
        "the last round may lack its scores, which the next start measures then: own.evaluate, round 1" in caplog.text
    )


class KilledError(BaseException):
    """A simulated kill: no error handler of the program may catch it."""


def test_a_coordinator_that_died_evaluates_the_same_state_again(
    stage: Stage, undisturbed: str, examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.arrive()
    first = stage.coordinator()

    def die(player: Player, message: RoundMessage) -> None:
        if message.round == 2:
            stage.broker.sessions["coordinator"].client = None
            monkeypatch.setattr(first._driver, "take_scores", lambda **_: None)
            examiner.may.set()
            raise KilledError

    with stage.closing(first), pytest.raises(KilledError):
        first.execute(lambda: stage.turn(die))
    stage.forget_answers()
    again = stage.coordinator()
    with stage.closing(again):
        (row,) = again.run.folder.journal.results()
        assert row.awaits_scores
        again.execute(stage.offer)
        rows = again.run.folder.journal.results()
    assert [row.accuracy for row in rows] == [0.1, 0.2]
    assert [row.accuracy for row in stage.board.current.history] == [0.1, 0.2]
    assert len(set(examiner.states)) == 2, "the state of round 1 twice, and that of round 2"
    assert stage.sha256 == undisturbed
