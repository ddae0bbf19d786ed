"""A user's own algorithm: what it yields and returns is checked at once, and its errors name their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.server.round.test_machine import Driver, kinds, labs, load

from fedquilt_common.algorithm_api import Ask, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.errors import AlgorithmError, PayloadError, RunFailedError
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_server.lab.checked_algorithm import CheckedAlgorithm
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy

POLICY = Policy(rounds=3, clients=2, quorum=2)
MODEL = {"w": np.zeros(1, np.float32)}
TASK = Task("train", MODEL)
NAN, HUGE = np.full(1, np.nan, np.float32), np.full(1, 1e300)


@dataclass(frozen=True)
class Own(FedAvg):
    """An algorithm that misbehaves in round 2."""

    yields: Any = None
    returns: Any = field(default_factory=lambda: State(MODEL))
    raises: BaseException | None = None
    first: Any = field(default_factory=lambda: State(MODEL))
    late: bool = False

    def init(self, model: Any, ctx: Any) -> Any:
        return self.first

    def round(self, state: State, ctx: Any) -> Any:
        if ctx.round < 2:
            return super().round(state, ctx)
        return self._second(state, ctx)

    def _second(self, state: State, ctx: Any) -> Any:
        if self.raises is not None and not self.late:
            raise self.raises
        yield {} if self.late else self.yields
        if self.raises is not None:
            raise self.raises
        return self.returns

    def evaluate(self, state: State, ctx: Any) -> Any:
        if self.raises is not None:
            raise self.raises
        return self.returns


def checked(own: Any) -> CheckedAlgorithm:
    return CheckedAlgorithm(own, "lab.bad:Bad", lambda: [MODEL], "runs/x/logs/coordinator.log")


def play(own: Any) -> Driver:
    """Play round 1 and open round 2; the algorithm ends it at once if it yields an empty mapping."""
    driver = Driver(POLICY, checked(own))
    driver.join(0, 0, 1)
    driver.reply(1, 0)
    driver.reply(2, 1)
    return driver


def failure(own: Any) -> str:
    with pytest.raises(AlgorithmError) as caught:
        play(own)
    assert caught.value.exit_code == 7
    assert isinstance(caught.value, RunFailedError)
    return str(caught.value)


WHERE = "lab.bad:Bad.round, round 2: "
YIELDED: dict[str, tuple[Any, str]] = {
    "nothing": (None, "yielded None; yield a mapping of clients to tasks, such as `{client: task for client in"),
    "a list": ([TASK], "yielded the list [Task("),
    "a task": (TASK, "yielded Task("),
    "a text as client": ({"0": TASK}, "yielded a task for '0', which is not a client"),
    "True as client": ({True: TASK}, "yielded a task for True, which is not a client"),
    "no such client": ({99: TASK}, "yielded a task for client 99, which does not exist; the clients are 0 to 98"),
    "a negative client": ({-1: TASK}, "yielded a task for client -1, which does not exist"),
    "no task": ({0: MODEL}, "yielded the dict {'w': array([0.], dtype=float32)} for client 0; yield a Task"),
    "no arrays": ({0: Task("train", 3)}, "Task.arrays of client 0 is the int 3"),  # type: ignore[arg-type]
    "a list as array": ({0: Task("train", {"x": [1.0]})}, "Task.arrays of client 0['x'] is the list [1.0]"),  # type: ignore[dict-item]
    "objects": ({0: Task("train", {"x": np.array([{}])})}, "arrays of dtype object cannot be sent"),
    "not finite": ({0: Task("train", {"x": NAN})}, "Task.arrays of client 0['x'] has numbers that are not finite"),
    "an object as scalar": ({0: Task("train", MODEL, {"x": []})}, "Task.scalars of client 0['x'] is the list []"),  # type: ignore[dict-item]
    "infinity as scalar": (
        {0: Task("train", MODEL, {"best": np.inf})},
        "Task.scalars of client 0['best'] is inf, which",
    ),
    "a number as scalar's name": (
        {0: Task("train", scalars={1: 2})},  # type: ignore[dict-item]
        "Task.scalars of client 0 has the name the int 1",
    ),
    "a kind of two words": ({0: Task("train it")}, "Task.kind of client 0 is the str 'train it'; use up to 64 letters"),
    "a kind of another alphabet": ({0: Task("tränen")}, "Task.kind of client 0 is the str 'tränen'"),
    "a list of shapes": ({0: Task("train", expect=[(3,)])}, "Task.expect of client 0 is the list [(3,)]; map names"),  # type: ignore[arg-type]
    "a length as shape": ({0: Task("train", expect={"a": 3})}, "Task.expect of client 0['a'] is the int 3; map names"),  # type: ignore[dict-item]
    "arrays as shapes": ({0: Task("train", expect=MODEL)}, "Task.expect of client 0['w'] is the ndarray array([0.]"),  # type: ignore[arg-type]
    "a wrong alternative": (
        {0: Task("train", expect=({"a": (3,)}, {"a": (-3,)}))},
        "Task.expect of client 0['a'] is the",
    ),
    "a text as slice": ({0: Task("train", slice="half")}, "Task.slice of client 0 is the str 'half'; use a Slice"),  # type: ignore[arg-type]
    "an open bound": ({0: Task("train", metrics={"loss": (0, None)})}, "Task.metrics of client 0['loss'] is the tuple"),  # type: ignore[dict-item]
    "bounds in the wrong order": (
        {0: Task("train", metrics={"loss": (1, 0)})},
        "map names to the least and the greatest",
    ),
    "an unknown dtype": ({0: Task("train", MODEL, dtypes={"w": "float99"})}, "Task.dtypes of client 0['w'] is the str"),
    "a dtype that is not sent": ({0: Task("train", MODEL, dtypes={"w": "complex64"})}, "of dtype complex64 cannot be"),
    "a dtype of no array": ({0: Task("train", MODEL, dtypes={"x": "int64"})}, "names 'x', which no reply has"),
    "a text as flag": ({0: Task("train", lasting="no")}, "Task.lasting of client 0 is the str 'no'; use True or"),  # type: ignore[arg-type]
    "in an Ask": (Ask({99: TASK}, 1), "client 99, which does not exist"),
}


@pytest.mark.parametrize(("tasks", "words"), YIELDED.values(), ids=YIELDED)
def test_what_a_round_may_not_yield(tasks: Any, words: str) -> None:
    text = failure(Own(tasks))
    assert text.startswith(WHERE)
    assert words in text
    assert text.endswith(
        ". Correct it, and run the same command again to resume (`fedquilt coordinator` with --resume)"
    )


RETURNED: dict[str, tuple[Any, str]] = {
    "nothing": (None, "returned None; return the "),
    "arrays": (MODEL, "returned the dict {'w'"),
    "a list": (State([1]), "State.arrays is the list [1]"),  # type: ignore[arg-type]
    "not finite": (State({"w": NAN}), "State.arrays['w'] has numbers that are not finite"),
    "not finite in extra": (State(MODEL, {"v": -np.inf * np.ones(2)}), "State.extra['v'] has numbers that are not"),
    "too large": (State(MODEL, {"v": HUGE}), "State.extra['v'] has numbers that are not finite, or beyond float32's"),
    "integers": (
        State({"w": np.zeros(1, np.int32)}),
        "State.arrays['w'] is int32 of shape (1,), the model has float32 of shape (1,); convert it",
    ),
    "double": (State({"w": np.zeros(1)}), "State.arrays['w'] is float64 of shape (1,), the model has float32"),
    "complex": (State({"w": np.zeros(1, np.complex64)}), "arrays of dtype complex64 cannot be sent"),
    "another shape": (State({"w": np.zeros((2, 1), np.float32)}), "State.arrays['w'] is float32 of shape (2, 1)"),
    "another name": (State({"x": np.zeros(1, np.float32)}), "State.arrays lacks 'w'"),
    "a further array": (State({**MODEL, "x": HUGE[:0]}), "State.arrays['x'] is not an array of the model; put further"),
    "a text as score": (State(MODEL, scores={"accuracy": "high"}), "State.scores['accuracy'] is the str 'high'"),  # type: ignore[dict-item]
    "no JSON": (State(MODEL, report={"x": {1, 2}}), "State.report['x'] is the set {1, 2}, which is not JSON"),
    "not finite in the report": (State(MODEL, report={"x": [NAN[0]]}), "State.report['x'] is the list"),
    "a text as part": (State(MODEL, parts={0: "half"}), "State.parts[0] is the str 'half'; it is the Slice that"),  # type: ignore[dict-item]
    "no parts": (State(MODEL, apart=3), "State.apart is the int 3; it maps clients to the Slice"),  # type: ignore[arg-type]
    "no report": (State(MODEL, report=3), "State.report is the int 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("state", "words"), RETURNED.values(), ids=RETURNED)
def test_what_a_round_may_not_return(state: Any, words: str) -> None:
    text = failure(Own({}, state))
    assert text.startswith(WHERE)
    assert words in text


@pytest.mark.parametrize(("state", "words"), RETURNED.values(), ids=RETURNED)
def test_what_init_may_not_return(state: Any, words: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        checked(Own(first=state)).init(MODEL, labs(1)(0, {}, 0.0, {}))
    assert str(caught.value).startswith("lab.bad:Bad.init: ")
    assert words in str(caught.value)


def test_the_advice_is_that_of_the_method() -> None:
    assert "return the next state, such as `State(mean(replies, like=state.arrays))`" in failure(Own({}, None))
    with pytest.raises(AlgorithmError, match=r"returned None; return the first state, such as `State\(model\)`"):
        checked(Own(first=None)).init(MODEL, labs(1)(0, {}, 0.0, {}))


def test_a_state_that_is_refused_leaves_the_one_before() -> None:
    driver = Driver(POLICY, checked(Own({}, State({"w": NAN}))))
    driver.join(0, 0, 1)
    driver.reply(1, 0)
    with pytest.raises(AlgorithmError):
        driver.reply(2, 1)
    (last,) = driver.checkpoints
    assert (last.round, driver.value) == (1, 1.0)


def test_a_round_that_is_no_generator() -> None:
    class Plain(FedAvg):
        def round(self, state: State, ctx: Any) -> Any:
            return None

    driver = Driver(POLICY, checked(Plain()))
    with pytest.raises(
        AlgorithmError, match=r"lab\.bad:Bad\.round, round 1: returned None instead of a generator; write"
    ):
        driver.join(0, 0, 1)


@pytest.mark.parametrize("late", [False, True], ids=["before its yield", "after it"])
@pytest.mark.parametrize(
    "error", [ValueError("boom"), KeyError("boom"), StopIteration("boom"), OSError("boom")], ids=repr
)
def test_an_error_names_its_place(error: Exception, late: bool, caplog: pytest.LogCaptureFixture) -> None:
    text = failure(Own({}, raises=error, late=late))
    kind = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__
    place = r"lab\.bad:Bad\.round, round 2 \(test_checked_algorithm\.py line \d+\): "
    assert re.match(f"{place}{kind}: ", text)
    assert text.endswith("The full traceback is in runs/x/logs/coordinator.log")
    assert "Traceback (most recent call last)" in caplog.text


@pytest.mark.parametrize("late", [False, True], ids=["before its yield", "after it"])
def test_a_sys_exit_is_an_error_with_its_place(late: bool) -> None:
    text = failure(Own({}, raises=SystemExit(0), late=late))
    assert re.match(
        r"lab\.bad:Bad\.round, round 2: the code called sys\.exit\(0\) \(test_checked_algorithm\.py line \d+\); "
        "remove that call, and run the same command again",
        text,
    )


def test_an_error_in_init_and_evaluate_names_its_place() -> None:
    class Broken(FedAvg):
        def init(self, model: Any, ctx: Any) -> Any:
            return next(iter(()))

        def evaluate(self, state: Any, ctx: Any) -> Any:
            return dict[str, float]()["accuracy"]

    context = labs(1)(4, {}, 0.0, {})
    with pytest.raises(AlgorithmError, match=r"Bad\.init \(test_checked_algorithm\.py line \d+\): StopIteration"):
        checked(Broken()).init(MODEL, context)
    with pytest.raises(
        AlgorithmError, match=r"Bad\.evaluate, round 4 \(test_checked\w+\.py line \d+\): KeyError: 'acc"
    ):
        checked(Broken()).evaluate(State(MODEL), context)


def test_the_place_is_in_the_users_code_not_in_what_it_called() -> None:
    class Deep(FedAvg):
        def evaluate(self, state: Any, ctx: Any) -> Any:
            return np.linalg.inv(np.zeros((2, 2)))

    with pytest.raises(AlgorithmError, match=r"test_checked_algorithm\.py line \d+\): LinAlgError: Singular matrix\. "):
        checked(Deep()).evaluate(State(MODEL), labs(1)(4, {}, 0.0, {}))


def test_an_error_without_a_text_has_no_colon() -> None:
    with pytest.raises(AlgorithmError, match=r"line \d+\): AssertionError\. Correct it"):
        play(Own({}, raises=AssertionError()))


def test_errors_of_fedquilt_pass_unchanged() -> None:
    for error in (PayloadError("two public sets"), RunFailedError("no budget")):
        with pytest.raises(type(error), match=str(error)) as caught:
            play(Own({}, raises=error))
        assert caught.value is error


def test_a_file_that_fedquilt_cannot_read_is_no_mistake_of_the_algorithm(tmp_path: Path) -> None:
    write_arrays(tmp_path / "reply", MODEL, "fp32")
    reply = FileArrays(tmp_path / "reply")
    (tmp_path / "reply").unlink()

    class Reads(FedAvg):
        def evaluate(self, state: Any, ctx: Any) -> Any:
            return {"w": reply["w"]}

    with pytest.raises(FileNotFoundError):
        checked(Reads()).evaluate(State(MODEL), labs(1)(4, {}, 0.0, {}))


@pytest.mark.parametrize("scores", [None, [0.5], {"accuracy": "0.5"}, {3: 0.5}, {"accuracy": True}], ids=str)
def test_what_evaluate_may_not_return(scores: Any) -> None:
    with pytest.raises(AlgorithmError, match=r"lab\.bad:Bad\.evaluate, round 4: the result(\[.*\])? is "):
        checked(Own(returns=scores)).evaluate(State(MODEL), labs(1)(4, {}, 0.0, {}))


def test_numbers_of_numpy_are_scores() -> None:
    found: Mapping[str, float] = {"accuracy": np.float32(0.5), "f1": np.int64(1)}
    scores = checked(Own(returns=found)).evaluate(State(MODEL), labs(1)(4, {}, 0.0, {}))
    assert scores == {"accuracy": 0.5, "f1": 1.0}
    assert {type(value) for value in scores.values()} == {float}


def test_a_report_becomes_json() -> None:
    driver = play(Own({}, State(MODEL, report={"age": np.float32(1.5), "of": {"0": (1, None)}})))
    assert driver.checkpoints[1].state.report == {"age": 1.5, "of": {"0": [1, None]}}


def test_nobody_is_asked_with_an_empty_mapping() -> None:
    driver = play(Own({}))
    assert [one.round for one in driver.checkpoints] == [1, 2, 3]


def test_an_algorithm_without_a_global_model_has_no_arrays() -> None:
    own = checked(Own({}, State({}, {"v": np.ones(3)}), first=State({})))
    machine = Machine(own, POLICY, own.init(MODEL, labs(1)(0, {}, 0.0, {})), labs(2), load, done=1)
    assert kinds(machine.proceed(State({}), 0.0)) == []


def test_numbers_of_numpy_are_clients_and_scalars() -> None:
    task = Task("train", MODEL, {"rate": np.float32(0.5), "steps": np.int64(3)})
    own = checked(Own(Ask({np.int64(0): task, np.int64(1): task}, 1)))
    steps = own.round(State(MODEL), labs(1)(4, {}, 0.0, {}))
    asked = next(steps)
    assert isinstance(asked, Ask)
    assert (asked.until, [type(client) for client in asked]) == (1, [int, int])
    assert asked[0] is asked[1]
    assert asked[0].scalars == {"rate": 0.5, "steps": 3}
    assert [type(value) for value in asked[0].scalars.values()] == [float, int]
    steps.close()


@pytest.mark.parametrize("until", [1.5, "2", True, None])
def test_ask_needs_a_number_of_replies(until: Any) -> None:
    with pytest.raises(ValueError, match=rf"Ask\.until = {until!r}: the number of replies"):
        Ask({}, until)


def test_ask_accepts_numbers_of_numpy() -> None:
    until = Ask({}, np.int64(2)).until
    assert (until, type(until)) == (2, int)
