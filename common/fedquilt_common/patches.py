"""Publish once: which publications an exchange needs, and which of them each client wants (design section 5).

A patch is what exactly one set of clients wants. Clients whose tasks hold the same arrays object want the same
slice, so the object is the unit here: it is written, digested and published once, whatever the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedquilt_common.types import Arrays, ClientId, Task


@dataclass(frozen=True)
class TaskGroup:
    """Clients that are asked exactly the same; ``patches`` are positions in the plan's list."""

    clients: tuple[ClientId, ...]
    task: Task
    patches: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Everything to publish for one exchange, each patch once."""

    patches: tuple[Arrays, ...]
    groups: tuple[TaskGroup, ...]


def plan(tasks: Mapping[ClientId, Task]) -> Plan:
    """The publications for ``tasks`` in client order; tasks without arrays need none."""
    patches: list[Arrays] = []
    position: dict[int, int] = {}
    groups: dict[tuple[object, ...], list[ClientId]] = {}
    for client in sorted(tasks):
        task = tasks[client]
        if len(task.arrays) and id(task.arrays) not in position:
            position[id(task.arrays)] = len(patches)
            patches.append(task.arrays)
        groups.setdefault(_question(task), []).append(client)
    return Plan(tuple(patches), tuple(_group(tasks, clients, position) for clients in groups.values()))


def _question(task: Task) -> tuple[object, ...]:
    scalars = sorted(
        (key, repr(value)) for key, value in task.scalars.items()
    )  # 1, 1.0 and True are equal, not the same
    return (task.kind, id(task.arrays) if len(task.arrays) else 0, tuple(scalars))


def _group(tasks: Mapping[ClientId, Task], clients: list[ClientId], position: Mapping[int, int]) -> TaskGroup:
    task = tasks[clients[0]]
    wanted = (position[id(task.arrays)],) if len(task.arrays) else ()
    return TaskGroup(tuple(clients), task, wanted)
