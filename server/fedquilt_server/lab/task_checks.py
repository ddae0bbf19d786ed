"""Checks the tasks that a round yields, field by field. Pure.

Each ``..._problem`` returns what is wrong and what to write instead, without the last full stop; an empty text if
nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from fedquilt_common.algorithm_api import Ask, Task
from fedquilt_common.algorithm_api.array_types import mapping_problem, shorten
from fedquilt_common.errors import PayloadError
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import ClientId, Scalar
from fedquilt_common.wire.codec import wire_dtype
from fedquilt_common.wire.topics import NAME
from fedquilt_server.lab.array_checks import arrays_problem

_SCALARS: Final = (str, int, float, bool)
_KIND: Final = "use up to 64 letters, digits, '_', '.' and '-', such as 'train'"
_METRICS: Final = "map names to the least and the greatest value, such as `{'loss': (0.0, 1e9)}`"
_EXPECT: Final = "map names to shapes, such as `{'w': (3, 4)}`; a tuple of such mappings lists alternatives"


def task_problem(task: object, client: object, checked: set[tuple[str, int]]) -> str:
    """Check a task.

    Args:
        task: what a round yielded for a client.
        client: names it for the message.
        checked: fields that are known to be right, by name and id of a value that lives; those checked now join.
            Clients often share a task, or at least its arrays.
    """
    if not isinstance(task, Task):
        return f"yielded {shorten(task)} for client {client}; yield a Task for each client, such as Task('train')"
    if ("task", id(task)) in checked:
        return ""
    checked.add(("task", id(task)))
    for name, check in _CHECKS.items():
        value = getattr(task, name)
        if (name, id(value)) not in checked:
            checked.add((name, id(value)))
            if problem := check(value, f"Task.{name} of client {client}"):
                return problem
    return _dtype_names_problem(task, client)


def _kind_problem(kind: object, where: str) -> str:
    return "" if isinstance(kind, str) and NAME.fullmatch(kind) else f"{where} is {shorten(kind)}; {_KIND}"


def _scalars_problem(scalars: object, where: str) -> str:
    if not isinstance(scalars, Mapping):
        return f"{where} is {shorten(scalars)}; map names to texts and numbers"
    for name, value in scalars.items():
        if not isinstance(name, str):
            return f"{where} has the name {shorten(name)}; names are texts"
        plain = _plain(value)
        if not isinstance(plain, _SCALARS):
            return f"{where}[{name!r}] is {shorten(value)}; use a text, number, True or False"
        if isinstance(plain, float) and not math.isfinite(plain):
            return f"{where}[{name!r}] is {plain}, which no message can carry; leave it out, or use a finite number"
    return ""


def _expect_problem(expect: object, where: str) -> str:
    for shapes in expect if isinstance(expect, tuple) else () if expect is None else (expect,):
        if problem := mapping_problem(shapes, where, _is_shape, _EXPECT):
            return problem
    return ""


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(isinstance(size, Integral) and int(size) >= 0 for size in shape)


def _slice_problem(part: object, where: str) -> str:
    return "" if part is None or isinstance(part, Slice) else f"{where} is {shorten(part)}; use a Slice, or None"


def _metrics_problem(metrics: object, where: str) -> str:
    return mapping_problem(metrics, where, _are_bounds, _METRICS)


def _are_bounds(bounds: object) -> bool:
    if not isinstance(bounds, tuple) or len(bounds) != 2 or not all(isinstance(bound, Real) for bound in bounds):
        return False
    return bool(bounds[0] <= bounds[1])


def _flag_problem(flag: object, where: str) -> str:
    return "" if isinstance(flag, bool) else f"{where} is {shorten(flag)}; use True or False"


def _dtypes_problem(dtypes: object, where: str) -> str:
    advice = "map names of the reply's arrays to numpy's names of dtypes, such as `{'counts': 'int64'}`"
    if not isinstance(dtypes, Mapping):
        return f"{where} is {shorten(dtypes)}; {advice}"
    for name, dtype in dtypes.items():
        try:
            wire_dtype(np.dtype(dtype), "fp32")
        except PayloadError as error:
            return f"{where}[{name!r}]: {error}"
        except TypeError:
            return f"{where}[{name!r}] is {shorten(dtype)}; {advice}"
    return ""


def _dtype_names_problem(task: Task, client: object) -> str:
    """Check that each array in ``dtypes`` is one of the reply's."""
    if not task.dtypes:
        return ""
    expected = task.arrays if task.expect is None else task.expect
    replies = expected if isinstance(expected, tuple) else (expected,)
    if others := [name for name in task.dtypes if not any(name in arrays for arrays in replies)]:
        return (
            f"Task.dtypes of client {client} names {others[0]!r}, which no reply has; name arrays of Task.expect, or "
            "of Task.arrays where that is None"
        )
    return ""


_CHECKS: Final[Mapping[str, Callable[[Any, str], str]]] = {
    "kind": _kind_problem,
    "arrays": arrays_problem,
    "scalars": _scalars_problem,
    "expect": _expect_problem,
    "slice": _slice_problem,
    "metrics": _metrics_problem,
    "labels": _flag_problem,
    "dtypes": _dtypes_problem,
    "lasting": _flag_problem,
    "summed": _flag_problem,
}


def plain_tasks(tasks: Mapping[Any, Task]) -> Mapping[ClientId, Task]:
    """Return checked tasks in which numpy's numbers are Python's: clients, and scalars."""
    made: dict[int, Task] = {}
    plain = {int(client): made.setdefault(id(task), _plain_task(task)) for client, task in tasks.items()}
    return Ask(plain, tasks.until) if isinstance(tasks, Ask) else plain


def _plain_task(task: Task) -> Task:
    if not any(isinstance(value, np.generic) for value in task.scalars.values()):
        return task
    scalars: dict[str, Scalar] = {name: _plain(value) for name, value in task.scalars.items()}
    return replace(task, scalars=scalars)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
