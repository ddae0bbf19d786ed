"""What the machine keeps of a run's rules, of its agents and of the open exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedquilt_common.algorithm_api import Task
from fedquilt_common.types import ClientId, Profile
from fedquilt_server.round.events import Replied


@dataclass(frozen=True)
class Policy:
    """When a run starts, when an exchange closes. ``deadline`` in seconds after the exchange opened."""

    rounds: int
    clients: int
    quorum: int
    deadline: float | None = None
    shortfall: Literal["wait", "replace"] = "wait"


@dataclass(frozen=True)
class KnownAgent:
    """An agent that is there."""

    boot: int
    clients: tuple[ClientId, ...]
    workers: int
    profile: Profile


@dataclass
class Exchange:
    """The open exchange: who was asked what, and who has answered."""

    number: int
    tasks: Mapping[ClientId, Task]
    deadline: float | None
    replies: dict[ClientId, Replied] = field(default_factory=dict)
    overdue: bool = False


def same_question(one: Task, other: Task) -> bool:
    """Whether a reply to one answers the other."""
    same = one.arrays is other.arrays or not (len(one.arrays) or len(other.arrays))
    return same and (one.kind, one.scalars) == (other.kind, other.scalars)
