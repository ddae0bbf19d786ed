"""Checks what the server half of an algorithm yields and returns. Pure.

Each function returns what is wrong and what to write instead, without the last full stop; an empty text if nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from fedquilt_common.algorithm_api import State
from fedquilt_common.algorithm_api.array_types import mapping_problem, shorten
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import Arrays
from fedquilt_server.lab.array_checks import arrays_problem, layout_problem
from fedquilt_server.lab.task_checks import task_problem

_NO_GENERATOR: Final = (
    "a generator; write a method with `replies = yield {client: task for client in ctx.select()}` and "
    "`return State(...)`"
)
_NO_MAPPING: Final = (
    "yield a mapping of clients to tasks, such as `{client: task for client in ctx.select()}`, or an empty one to ask "
    "nobody"
)
_NO_FIRST_STATE: Final = "return the first state, such as `State(model)`"
_NO_STATE: Final = "return the next state, such as `State(mean(replies, like=state.arrays))`"


def round_problem(steps: object) -> str:
    """Check what ``Algorithm.round`` returned when it was called."""
    return "" if isinstance(steps, Generator) else f"returned {shorten(steps)} instead of {_NO_GENERATOR}"


def tasks_problem(tasks: object, clients: int, state: State) -> str:
    """Check what a round yielded.

    Args:
        tasks: what it yielded.
        clients: number of clients of the experiment.
        state: of the round; its own arrays are not checked again.
    """
    if not isinstance(tasks, Mapping):
        return f"yielded {shorten(tasks)}; {_NO_MAPPING}"
    checked = {("arrays", id(state.arrays)), ("arrays", id(state.extra))}
    for client, task in tasks.items():
        if problem := _client_problem(client, clients) or task_problem(task, client, checked):
            return problem
    return ""


def _client_problem(client: object, clients: int) -> str:
    if isinstance(client, bool) or not isinstance(client, Integral):
        return f"yielded a task for {client!r}, which is not a client; {_NO_MAPPING}. Clients are integers from 0"
    if not 0 <= int(client) < clients:
        return f"yielded a task for client {client}, which does not exist; the clients are 0 to {clients - 1}"
    return ""


def state_problem(state: object, before: State | None, models: Iterable[Arrays]) -> str:
    """Check what ``init`` or ``round`` returned.

    Args:
        state: what it returned.
        before: the state of the round; its own arrays are not checked again. None: there is none.
        models: arrays with the names, dtypes and shapes that the global model may have.
    """
    if not isinstance(state, State):
        return f"returned {shorten(state)}; {_NO_FIRST_STATE if before is None else _NO_STATE}"
    problem = ""
    if before is None or state.arrays is not before.arrays:
        problem = arrays_problem(state.arrays, "State.arrays") or (
            layout_problem(state.arrays, models) if state.arrays else ""
        )
    if not problem and (before is None or state.extra is not before.extra):
        problem = arrays_problem(state.extra, "State.extra")
    return (
        problem
        or scores_problem(state.scores, "State.scores")
        or _parts_problem(state.parts, "State.parts")
        or _parts_problem(state.apart, "State.apart")
    )


def _parts_problem(parts: object, where: str) -> str:
    """Check the sub-models that clients have trained."""
    if not isinstance(parts, Mapping):
        return f"{where} is {shorten(parts)}; it maps clients to the Slice that each has trained"
    for client, part in parts.items():
        if not isinstance(part, Slice):
            return f"{where}[{client!r}] is {shorten(part)}; it is the Slice that the client has trained"
    return ""


def scores_problem(scores: object, where: str) -> str:
    """Check scores: those of ``State.scores``, or what ``evaluate`` returned.

    Args:
        scores: should be a mapping of names to numbers, which may be infinite or NaN.
        where: names them for the message.
    """
    return mapping_problem(scores, where, _is_score, "scores are numbers by name, such as `{'accuracy': 0.5}`")


def _is_score(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def json_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``State.report`` in which numpy's numbers are Python's, as it will be in ``result.json``.

    Raises:
        ValueError: a value is not JSON; the text names it.
    """
    if not isinstance(report, Mapping) or not all(isinstance(name, str) for name in report):
        raise ValueError(f"State.report is {shorten(report)}; it maps names to JSON values")
    return {name: _json_copy(name, value) for name, value in report.items()}


def _json_copy(name: str, value: object) -> Any:
    try:
        return json.loads(json.dumps(value, default=_plain_number, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"State.report[{name!r}] is {shorten(value)}, which is not JSON ({error}); use finite numbers, texts, "
            "True, False, None, lists, and dictionaries with texts as keys"
        ) from None


def _plain_number(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"type {type(value).__name__}")


def not_finite(scores: Mapping[str, float]) -> Collection[str]:
    """Return the names of scores that are infinite or not a number."""
    return [name for name, value in scores.items() if not np.isfinite(value)]
