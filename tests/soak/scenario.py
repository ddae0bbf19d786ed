"""The plan of a scenario: the seed alone determines the experiment, the faults and their times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.soak.experiments import LINKS, NAMES, POLICIES

FEWEST_FAULTS, MOST_FAULTS = 3, 6
WORKER_KILLS: Final = 2
"""An agent gives a task up after three dead workers, by design."""
SYSCALLS: Final = ("write,pwrite64", "fsync,fdatasync", "rename,unlink,mkdir", "openat", "%file", "%desc", "sendto")
"""What is counted until a process is killed: names of system calls, or classes of them as strace names them."""
ERRORS: Final = ("pwrite64:error=ENOSPC", "fsync,fdatasync:error=EIO", "rename:error=ENOSPC", "mkdir:error=EROFS")
"""What system calls answer, as strace injects it."""

ATTACKS: Final = ("garbage", "claims", "replies", "failures", "flood", "deaf")


@dataclass(frozen=True)
class FaultClass:
    """A class of faults.

    Attributes:
        targets: what it can hit.
        weight: how often it is drawn, in relation to the others of its theme.
        seconds: shortest and longest duration.
        details: further choices, one of which is drawn.
    """

    targets: tuple[str, ...]
    weight: float = 1.0
    seconds: tuple[float, float] = (0.0, 0.0)
    details: tuple[str, ...] = ("",)


WEATHERS: Final = ("calm", "delays", "duplicates", "swaps", "storm")
PROCESSES: Final = ("coordinator", "agent", "worker", "broker", "simulate")
FAULTS: Final[Mapping[str, Mapping[str, FaultClass]]] = {
    "processes": {
        "kill": FaultClass(PROCESSES, 3.0),
        "stop": FaultClass(PROCESSES, 2.0, (0.2, 6.0)),
        "terminate": FaultClass(PROCESSES),
        "syscall": FaultClass(("coordinator", "agent", "worker", "simulate"), 3.0, (8.0, 8.0), SYSCALLS),
    },
    "network": {
        "cut": FaultClass(("coordinator", "agent", "everyone"), 3.0, (0.0, 4.0)),
        "stall": FaultClass(("coordinator", "agent", "everyone"), 1.0, (0.2, 5.0)),
        "blackhole": FaultClass(("coordinator", "agent"), 2.0, (1.5, 5.0)),
        "half-close": FaultClass(("coordinator", "agent"), 1.0, details=("up", "down")),
        "drop": FaultClass(("coordinator", "agent"), 2.0, details=("up", "down")),
        "restart": FaultClass(("broker",), 1.0, (0.0, 3.0)),
        "kill": FaultClass(("coordinator", "agent", "worker", "simulate"), 2.0),
    },
    "disk": {
        "damage": FaultClass(("run", "state"), 4.0, details=("flip", "truncate", "empty", "delete")),
        "fill": FaultClass(("disk",), 1.0, (0.5, 4.0)),
        "read-only": FaultClass(("disk",), 0.5),
        "error": FaultClass(("coordinator", "agent", "worker"), 2.0, (1.0, 3.0), ERRORS),
        "kill": FaultClass(("coordinator", "agent", "worker", "simulate")),
    },
    "partition": {
        "partition": FaultClass(("federation",), 3.0, (0.5, 12.0)),
        "kill": FaultClass(PROCESSES, 2.0),
        "stop": FaultClass(("coordinator", "agent", "broker"), 1.0, (0.2, 4.0)),
    },
    "peer": {
        "peer": FaultClass(("federation",), 3.0, (0.5, 4.0), ATTACKS),
        "kill": FaultClass(("coordinator", "agent", "worker", "simulate"), 1.5),
        "terminate": FaultClass(("agent",), 0.5),
        "stop": FaultClass(("coordinator", "agent"), 1.0, (0.2, 4.0)),
        "restart": FaultClass(("broker",), 0.5, (0.0, 1.0)),
    },
}
"""The classes of faults, by theme. A scenario has one theme."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of a theme in ``FAULTS``.
        target: what it hits.
        after: when, as a part of all the run's replies, from 0 to 1.
        delay: seconds that pass then.
        seconds: how long it lasts.
        number: any number of 1 or more: which agent, which system call, which byte.
        detail: what exactly it does.
    """

    kind: str
    target: str
    after: float
    delay: float
    seconds: float = 0.0
    number: int = 1
    detail: str = ""

    @property
    def label(self) -> str:
        """The fault's row in the report."""
        return f"{self.kind} {self.target}"

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.label} {self.detail} #{self.number} at {self.after:.0%} + {self.delay:.2f} s{lasts}"


@dataclass(frozen=True)
class Scenario:
    """What is run and what goes wrong. ``str`` gives a description in one line."""

    seed: int
    theme: str
    experiment: str
    policy: str
    link: str
    weather: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        faults = "; ".join(map(str, self.faults))
        return f"{self.experiment} ({self.policy}, {self.link} link, {self.weather} {self.theme}): {faults}"


def plan(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    draw = random.Random(f"soak {seed}")  # text is hashed alike in all versions of Python
    theme = draw.choice(sorted(FAULTS))
    name = draw.choice(NAMES)
    policy = draw.choices(list(POLICIES), (3, 1, 1))[0]
    link = draw.choices(list(LINKS), (4, 1, 1))[0]
    weather = draw.choice(WEATHERS) if theme == "network" else WEATHERS[0]
    faults = sorted(
        (_fault(draw, theme) for _ in range(draw.randint(FEWEST_FAULTS, MOST_FAULTS))), key=lambda fault: fault.after
    )
    return Scenario(seed, theme, name, policy, link, weather, tuple(_without_surplus(faults)))


def _fault(draw: random.Random, theme: str) -> Fault:
    classes = FAULTS[theme]
    kind = draw.choices(list(classes), [each.weight for each in classes.values()])[0]
    chosen = classes[kind]
    after = draw.choice((0.0, draw.random())) if kind != "peer" else draw.uniform(0.05, 0.9)
    delay = draw.uniform(0, 6) if after == 0 else draw.choice((0.0, draw.uniform(0, 0.2)))
    number = int(10 ** draw.uniform(0, 1.6))
    return Fault(
        kind, draw.choice(chosen.targets), after, delay, draw.uniform(*chosen.seconds), number,
        draw.choice(chosen.details),
    )  # fmt: skip


def _without_surplus(faults: list[Fault]) -> list[Fault]:
    """Drop faults that would kill a third worker."""
    deadly = [fault for fault in faults if fault.target == "worker" and fault.kind != "stop"]
    return [fault for fault in faults if fault not in deadly[WORKER_KILLS:]]
