"""Plans what an exchange publishes, each number once, and which publications each client needs.

Clients whose tasks hold the same arrays object and no slice share one publication: the arrays are written, digested
and published once, as a container. Slices of the same arrays are published patch by patch (``patch_layout``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedquilt_common.algorithm_api import Task
from fedquilt_common.submodels.patch_layout import Patch, patch_layout
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class Publication:
    """The content of one slot: all of ``arrays`` as a container, or one ``patch`` of them.

    ``labels`` marks soft labels, which travel under a topic of their own.
    """

    arrays: Arrays
    patch: Patch | None = None
    labels: bool = False


@dataclass(frozen=True)
class SliceEntry:
    """A slice of the exchange; slices with the same ``base`` are cut from the same arrays."""

    base: int
    part: Slice


@dataclass(frozen=True)
class TaskGroup:
    """Clients with exactly the same task; ``patches`` and ``slice`` are positions in the plan's lists."""

    clients: tuple[ClientId, ...]
    task: Task
    patches: tuple[int, ...]
    slice: int | None = None


@dataclass(frozen=True)
class PublicationPlan:
    """Everything to publish for one exchange, each number once."""

    patches: tuple[Publication, ...]
    groups: tuple[TaskGroup, ...]
    slices: tuple[SliceEntry, ...] = ()


def plan_publications(tasks: Mapping[ClientId, Task]) -> PublicationPlan:
    """Plan the publications for tasks, in client order; a task without arrays needs none."""
    ordered = [tasks[client] for client in sorted(tasks)]
    slices = _slices(ordered)
    patches, needed = _publications(ordered, slices)
    groups: dict[tuple[object, ...], list[ClientId]] = {}
    for client in sorted(tasks):
        groups.setdefault(_task_key(tasks[client]), []).append(client)
    made = [_group(tuple(clients), tasks[clients[0]], slices, needed) for clients in groups.values()]
    entries = tuple(SliceEntry(base, part) for base, (_, parts) in enumerate(slices.values()) for part in parts)
    return PublicationPlan(tuple(patches), tuple(made), entries)


_Slices = dict[int, tuple[Arrays, list[Slice]]]


def _slices(tasks: list[Task]) -> _Slices:
    """Return the distinct slices of each arrays object, in client order."""
    slices: _Slices = {}
    for task in tasks:
        if task.slice is not None:
            parts = slices.setdefault(id(task.arrays), (task.arrays, []))[1]
            if task.slice not in parts:
                parts.append(task.slice)
    return slices


def _publications(
    tasks: list[Task], slices: _Slices
) -> tuple[list[Publication], dict[tuple[int, int | None], tuple[int, ...]]]:
    """Return all publications, and for each pair (arrays object, slice) the positions of those that it needs."""
    patches: list[Publication] = []
    needed: dict[tuple[int, int | None], tuple[int, ...]] = {}
    for task in tasks:
        if task.slice is None and len(task.arrays) and (id(task.arrays), None) not in needed:
            needed[id(task.arrays), None] = (len(patches),)
            patches.append(Publication(task.arrays, labels=task.labels))
    for key, (arrays, parts) in slices.items():
        for patch in patch_layout(parts):
            for position in patch.needed_by:
                needed[key, position] = (*needed.get((key, position), ()), len(patches))
            patches.append(Publication(arrays, patch))
    return patches, needed


def _task_key(task: Task) -> tuple[object, ...]:
    scalars = sorted(
        (key, repr(value)) for key, value in task.scalars.items()
    )  # 1, 1.0 and True are equal but travel differently
    return (task.kind, id(task.arrays) if len(task.arrays) else 0, tuple(scalars), task.slice, task.labels, task.summed)


def _group(
    clients: tuple[ClientId, ...],
    task: Task,
    slices: _Slices,
    needed: Mapping[tuple[int, int | None], tuple[int, ...]],
) -> TaskGroup:
    if task.slice is None:
        return TaskGroup(clients, task, needed.get((id(task.arrays), None), ()))
    position = slices[id(task.arrays)][1].index(task.slice)
    before = 0
    for key, (_, parts) in slices.items():
        if key == id(task.arrays):
            break
        before += len(parts)
    return TaskGroup(clients, task, needed[id(task.arrays), position], before + position)
