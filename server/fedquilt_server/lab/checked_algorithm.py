"""The server half of an algorithm, checked: what it yields and returns can be used, and its errors have a place."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from fedquilt_common.algorithm_api import Reply, Round, ServerContext, State
from fedquilt_common.algorithm_api.wrapper import AlgorithmWrapper
from fedquilt_common.error_messages import RESUME
from fedquilt_common.errors import AlgorithmError, FedquiltError
from fedquilt_common.types import Arrays, ClientId
from fedquilt_common.user_imports import USER_ERRORS, describe_error, describe_sys_exit, find_place, package_of
from fedquilt_server.lab.seam_checks import (
    json_report,
    not_finite,
    round_problem,
    scores_problem,
    state_problem,
    tasks_problem,
)
from fedquilt_server.lab.task_checks import plain_tasks
from fedquilt_server.status.run_file_names import LOGS

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_ADVICE: Final = f"Correct it, and {RESUME}"


class _Yielded(NamedTuple):
    """What a round yielded; what it returned, if it has ended."""

    value: Any
    ended: bool


@dataclass(frozen=True)
class CheckedAlgorithm(AlgorithmWrapper):
    """An algorithm whose mistakes end the run at once, with the method, the round and what to change.

    A state that cannot be used is refused when it is returned, so the last checkpoint stays good.

    Attributes:
        inner: the algorithm.
        name: its name in the experiment.
        models: yields arrays in each layout that the global model may have; they are made when they are needed.
        log_place: where the coordinator's log is, for messages.
    """

    name: str
    models: Callable[[], Iterable[Arrays]]
    log_place: str

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        """Return the algorithm's first state.

        Raises:
            AlgorithmError: the algorithm's code raises an error, or returns what is not a valid state.
        """
        at = f"{self.name}.init"
        state = self._call(at, self.inner.init, model, ctx)
        return self._check_state(at, state, None, chain([model], self.models()))

    def round(self, state: State, ctx: ServerContext) -> Round:
        """Run the algorithm's round.

        Raises:
            AlgorithmError: the algorithm's code raises an error, or yields or returns what cannot be used.
        """
        at = f"{self.name}.round, round {ctx.round}"
        steps = self._call(at, self.inner.round, state, ctx)
        self._refuse(at, round_problem(steps))
        replies: Mapping[ClientId, Reply] | None = None
        try:
            while not (step := self._call(at, _take_step, steps, replies)).ended:
                self._refuse(at, tasks_problem(step.value, ctx.clients, state))
                replies = yield plain_tasks(step.value)
        finally:
            self._call(at, steps.close)
        return self._check_state(at, step.value, state, [state.arrays] if state.arrays else self.models())

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        """Return the algorithm's scores.

        Raises:
            AlgorithmError: the algorithm's code raises an error, or returns something else than scores.
        """
        at = f"{self.name}.evaluate, round {ctx.round}"
        scores = self._call(at, self.inner.evaluate, state, ctx)
        self._refuse(at, scores_problem(scores, "the result"))
        if names := not_finite(scores):
            log.warning("%s: %s is not a finite number", at, ", ".join(names))
        return {name: float(value) for name, value in scores.items()}

    def _call(self, at: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the algorithm's code.

        Raises:
            AlgorithmError: it raises an error. Those of fedquilt, and of its files, pass unchanged.
        """
        try:
            return function(*args, **kwargs)
        except FedquiltError:
            raise
        except USER_ERRORS as error:
            package = package_of(type(self.inner).__module__)
            if isinstance(error, SystemExit):
                raise AlgorithmError(f"{at}: the code {describe_sys_exit(error, package)}, and {RESUME}") from error
            if isinstance(error, OSError) and _is_ours(error, package):
                raise
            log.exception("%s", at)
            what = f"{at} ({find_place(error, package)}): {describe_error(error)}"
            raise AlgorithmError(f"{what}. {_ADVICE}. The full traceback is in {self.log_place}") from error

    def _refuse(self, at: str, problem: str) -> None:
        if problem:
            raise AlgorithmError(f"{at}: {problem}. {_ADVICE}")

    def _check_state(self, at: str, state: State, before: State | None, models: Iterable[Arrays]) -> State:
        """Return a state with a report in JSON, after its checks. One of ``models`` has its layout."""
        self._refuse(at, state_problem(state, before, models))
        try:
            return replace(state, report=json_report(state.report)) if state.report else state
        except ValueError as error:
            raise AlgorithmError(f"{at}: {error}. {_ADVICE}") from None


def _take_step(steps: Round, replies: Mapping[ClientId, Reply] | None) -> _Yielded:
    """Let a round continue; None: it has not begun."""
    try:
        return _Yielded(next(steps) if replies is None else steps.send(replies), ended=False)
    except StopIteration as done:
        return _Yielded(done.value, ended=True)


def _is_ours(error: OSError, package: str) -> bool:
    """Return whether fedquilt has accessed a file: the disk is at fault, not the algorithm of a package."""
    packages = [package_of(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    involved = [one for one in packages if one == package or one.startswith("fedquilt_")]
    return involved[-1].startswith("fedquilt_")


def find_log(folder: Path) -> str:
    """Return where the coordinator's log is: a simulation writes it into the run folder.

    Args:
        folder: the run folder.
    """
    file = folder / LOGS / "coordinator.log"
    return str(file) if file.is_file() else "the log of the coordinator (its standard error)"
