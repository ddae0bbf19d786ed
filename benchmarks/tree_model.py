"""What a round costs each part of a federation: a model fitted to the measurements of ``tree.py``, ``site_relays.py``.

Each part's processor seconds in a round are ``a + b * replies + c * megabytes`` of what one process handles, plus a
cost per agent for a coordinator, and a cost per megabyte of sums for relays and coordinators. Training is not part of
it. ``tree_predict.py`` puts the parts together. Everything here is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedquilt_client.joint_jobs import BYTES_PER_TASK, MOST_TASKS

Line = Mapping[str, Any]


def has_relays(line: Line) -> bool:
    """Return whether the agents of a case add replies up."""
    return bool(line["relay"])


def joint_jobs(line: Line) -> int:
    """Return how many joint jobs an agent of a case has for all of its tasks; 0: each task has a job of its own."""
    own = line["clients"] / line["agents"]
    is_joint = has_relays(line) and 1e6 * line["megabytes"] <= BYTES_PER_TASK * min(MOST_TASKS, own)
    return math.ceil(own / MOST_TASKS) if is_joint else 0


PARTS: Final[Mapping[str, tuple[str, Callable[[Line], bool]]]] = {
    "broker": ("broker", lambda _: True),
    "coordinator": ("coordinator", lambda line: not has_relays(line)),
    "coordinator of sums": ("coordinator", has_relays),
    "agent": ("agent", lambda line: not has_relays(line)),
    "relay": ("agent", lambda line: has_relays(line) and not joint_jobs(line)),
    "relay with joint jobs": ("agent", lambda line: joint_jobs(line) > 0),
    "training process": ("worker", lambda line: not joint_jobs(line)),
    "training process with joint jobs": ("worker", lambda line: joint_jobs(line) > 0),
}
"""Part -> the role of its processes, and whether a case has it; a case has one part of each role."""
SITE_RELAY: Final = "relay of a site"
"""The part that ``site_relays.py`` measures, and ``tree.py`` the others."""
TICK: Final = 0.01
"""Seconds of processor time that the kernel counts at a time."""
WELL_ABOVE: Final = 10
TINY: Final = 1e-12


@dataclass(frozen=True)
class Load:
    """What one process handles in a round.

    Attributes:
        replies: client replies; for a coordinator of sums, the members of all sums; for a broker, the transfers of
            models, replies and sums, in and out.
        megabytes: for broker, coordinator and agent, what passes its sockets; for a coordinator of sums, what it sends;
            for a relay, even that of a site, and a training process, the model's megabytes times its clients. A relay
            has these only for large models, and with joint jobs only sums.
        agents: those from which a coordinator or the relay of a site receives replies or sums.
        sum_megabytes: the model's megabytes times the sums that are read or written.
    """

    replies: float
    megabytes: float
    agents: float = 0.0
    sum_megabytes: float = 0.0

    @property
    def terms(self) -> tuple[float, ...]:
        """What the costs of a part are multiplied with."""
        return (1.0, self.replies, self.megabytes, self.agents, self.sum_megabytes)


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a part: in each round, for each reply, megabyte, agent, and megabyte of sums."""

    fixed: float
    reply: float
    megabyte: float
    agent: float = 0.0
    sum_megabyte: float = 0.0

    def seconds(self, load: Load) -> float:
        """Return the processor seconds of a round."""
        costs = (self.fixed, self.reply, self.megabyte, self.agent, self.sum_megabyte)
        return math.fsum(cost * term for cost, term in zip(costs, load.terms, strict=True))


@dataclass(frozen=True)
class Fit:
    """A part's cost, and how well it describes the measurements.

    Attributes:
        r2: share of the variance that it explains.
        worst: largest relative error of a case that it was fitted to.
        held_out: largest relative error of a case that it was not fitted to.
    """

    cost: Cost
    r2: float
    worst: float
    held_out: float


def load_of(part: str, line: Line) -> Load:
    """Return what one process of a part handled in a measured case."""
    if part == SITE_RELAY:
        return Load(line["clients"], line["megabytes"] * line["clients"], line["agents"], line["megabytes"])
    agents, model, own = line["agents"], line["megabytes"], line["clients"] / line["agents"]
    arriving = agents if line["relay"] else line["clients"]
    up, down = line["bytes_up"] / 1e6, line["bytes_down"] / 1e6
    return {
        "broker": Load(1 + agents + 2 * arriving, down * (1 + agents) + 2 * up),
        "coordinator": Load(line["clients"], down + up, agents),
        "coordinator of sums": Load(line["clients"], down, agents, model * agents),
        "agent": Load(own, model * (own + 1)),
        "relay": Load(0, model * own, 0, model),
        "relay with joint jobs": Load(own, 0, 0, model * (1 + joint_jobs(line))),
        "training process": Load(own, model * own),
        "training process with joint jobs": Load(own, model * own, 0, model * joint_jobs(line)),
    }[part]


def seconds_of(part: str, line: Line) -> float:
    """Return the processor seconds of one process of a part in a measured case."""
    role = PARTS[part][0] if part in PARTS else "relay"
    return float(line["processor_seconds"][role]) / (line["agents"] if role in ("agent", "worker") else 1)


def cases_of(part: str, lines: Sequence[Line], *, held_out: bool) -> list[Line]:
    """Return the cases that have a part: those to fit it to, or those that were held out."""
    has_part = PARTS[part][1] if part in PARTS else lambda _: True
    return [one for one in lines if one["held_out"] == held_out and has_part(one)]


def resolution(line: Line) -> float:
    """Return the processor seconds of a round that cannot be measured: the kernel counts ticks, over all rounds."""
    return TICK / float(line["rounds"])


def fit(part: str, lines: Sequence[Line]) -> Fit:
    """Fit a part's cost by non-negative least squares of the relative errors, so that small cases count as large ones.

    Args:
        part: a key of ``PARTS``, or ``SITE_RELAY``.
        lines: all measured cases that may have it.
    """
    from scipy.optimize import nnls

    used = cases_of(part, lines, held_out=False)
    found = np.array([seconds_of(part, line) for line in used])
    terms = np.array([load_of(part, line).terms for line in used])
    size = np.maximum(terms.max(axis=0), TINY)  # so that no term is lost beside one that is a million times as large
    weight = 1 / (found + [resolution(line) for line in used])
    solution, _ = nnls(terms / size * weight[:, None], found * weight)
    cost = Cost(*(float(value) for value in solution / size))
    predicted = np.array([cost.seconds(load_of(part, line)) for line in used])
    r2 = 1 - float(((found - predicted) ** 2).sum() / ((found - found.mean()) ** 2).sum())
    held = cases_of(part, lines, held_out=True)
    return Fit(cost, r2, largest_error(part, cost, used), largest_error(part, cost, held))


def largest_error(part: str, cost: Cost, lines: Sequence[Line]) -> float:
    """Return the largest relative error of a cost, of cases that are well above the resolution; 0 without any."""
    pairs = [(seconds_of(part, line), cost.seconds(load_of(part, line))) for line in lines
             if seconds_of(part, line) >= WELL_ABOVE * resolution(line)]  # fmt: skip
    return max((abs(predicted / found - 1) for found, predicted in pairs), default=0.0)


def fit_all(lines: Sequence[Line], sites: Sequence[Line]) -> dict[str, Fit]:
    """Fit every part.

    Args:
        lines: the cases of ``tree.py``.
        sites: those of ``site_relays.py``.
    """
    return {**{part: fit(part, lines) for part in PARTS}, SITE_RELAY: fit(SITE_RELAY, sites)}


@dataclass(frozen=True)
class MemoryFit:
    """The coordinator's highest resident memory: a fixed part, and more for each reply and each byte of the model.

    Attributes:
        fixed: bytes of every run.
        client: bytes for each client that replies.
        model_byte: bytes for each byte of the model.
        worst: largest relative error of a case.
    """

    fixed: float
    client: float
    model_byte: float
    worst: float

    def peak(self, clients: float, megabytes: float) -> float:
        """Return the bytes in a round in which all of the clients reply."""
        return self.fixed + self.client * clients + self.model_byte * megabytes * 1e6


def fit_memory(lines: Sequence[Line]) -> MemoryFit:
    """Fit the coordinator's memory to all cases that are not held out."""
    from scipy.optimize import nnls

    used = [line for line in lines if not line["held_out"]]
    found = np.array([line["peak_bytes"]["coordinator"] for line in used], float)
    terms = np.array([(1.0, line["clients"], line["megabytes"] * 1e6) for line in used])
    size = terms.max(axis=0)
    solution, _ = nnls(terms / size / found[:, None], np.ones(len(used)))
    fixed, client, model_byte = (float(value) for value in solution / size)
    made = MemoryFit(fixed, client, model_byte, 0.0)
    errors = [made.peak(line["clients"], line["megabytes"]) / line["peak_bytes"]["coordinator"] - 1 for line in lines]
    return MemoryFit(fixed, client, model_byte, max(map(abs, errors)))
