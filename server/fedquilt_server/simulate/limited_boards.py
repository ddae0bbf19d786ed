"""The boards of a simulation that have limits: whether they are enforced, and the record of that in the run folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from fedquilt_common.experiment.experiment import AgentSpec, agent_specs
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.plurals import counted
from fedquilt_server.simulate.board_limits import BoardLimits, Limiter, LimitsError, find_limiter
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.plan import SimulationPlan

RECORD: Final = "limits.json"
"""The file in the run folder; there is none if no board has limits."""
RESERVED: Final = "Ray reserves them on its nodes, and holds no process to them"


@dataclass(frozen=True)
class LimitedBoards:
    """The limits of the boards that have some, by agent.

    Attributes:
        limiter: enforces them; None: nothing does.
        reason: why nothing does.
        gpus: the GPUs of the boards that have some, by agent; no control group enforces them.
        gpus_reason: why nothing does.
    """

    limits: Mapping[str, BoardLimits] = field(default_factory=dict)
    limiter: Limiter | None = None
    reason: str = ""
    gpus: Mapping[str, float] = field(default_factory=dict)
    gpus_reason: str = ""

    def is_enforced(self, agent: str) -> bool:
        """Whether an agent has limits that are enforced."""
        return self.limiter is not None and agent in self.limits

    def limit(self, spec: ChildSpec) -> ChildSpec:
        """Return an agent's process with its limits, if they are enforced.

        Raises:
            LimitsError: they cannot be enforced, although the user may create control groups.
        """
        if self.limiter is None or spec.name not in self.limits:
            return spec
        return self.limiter.limit(spec, self.limits[spec.name])

    def describe(self) -> str:
        """Say whether the limits are enforced."""
        return ". ".join(filter(None, (self._describe_limits(), self._describe_gpus())))

    def _describe_limits(self) -> str:
        what = f"The limits of {_boards(self.limits)} (fleet.N.memory, fleet.N.cpus) are"
        if not self.limits:
            return ""
        if self.limiter is not None:
            return f"{what} enforced by {self.limiter.name}"
        return f"{what} not enforced: {self.reason}"

    def _describe_gpus(self) -> str:
        what = f"The GPUs of {_boards(self.gpus)} (fleet.N.gpus) are not enforced: {self.gpus_reason}"
        return what if self.gpus else ""

    def save(self, folder: Path) -> None:
        """Write the record."""
        record = {
            "enforced": self.limiter is not None,
            "by": self.limiter.name if self.limiter is not None else None,
            "reason": self.reason,
            "boards": {name: asdict(limits) for name, limits in self.limits.items()},
            **({"gpus": dict(self.gpus), "gpus_reason": self.gpus_reason} if self.gpus else {}),
        }
        write_atomically(folder / RECORD, json.dumps(record, indent=2) + "\n")


@contextlib.contextmanager
def limit_boards(plan: SimulationPlan, report: Callable[[str], None]) -> Iterator[LimitedBoards]:
    """Find what enforces the limits of the fleet, report and record it; the groups are removed after the block.

    Args:
        report: called with a sentence, if any board has limits.
    """
    boards = _find(plan)
    if boards.limits or boards.gpus:
        report(boards.describe())
        boards.save(plan.folder)
    try:
        yield boards
    finally:
        if boards.limiter is not None:
            boards.limiter.close()


def _boards(named: Mapping[str, object]) -> str:
    return counted(len(named), "board")


def _find(plan: SimulationPlan) -> LimitedBoards:
    agents = agent_specs(plan.experiment.fleet)
    gpus = {agent.name: agent.line.gpus for agent in agents if agent.line.gpus is not None}
    found = _find_limits(plan, agents)
    if not gpus:
        return found
    reason = RESERVED if plan.hosts is not None else "only `--ray` reserves them"
    return replace(found, gpus=gpus, gpus_reason=reason)


def _find_limits(plan: SimulationPlan, agents: Sequence[AgentSpec]) -> LimitedBoards:
    limits = {agent.name: BoardLimits.of_line(agent.line) for agent in agents}
    limits = {name: one for name, one in limits.items() if one.controllers}
    if not limits:
        return LimitedBoards()
    if plan.hosts is not None:
        return LimitedBoards(limits, reason=RESERVED)
    if not plan.limits:
        return LimitedBoards(limits, reason="--no-limits")
    largest = BoardLimits(
        max((one.memory for one in limits.values() if one.memory is not None), default=None),
        max((one.cpus for one in limits.values() if one.cpus is not None), default=None),
    )
    try:
        return LimitedBoards(limits, find_limiter(largest))
    except LimitsError as error:
        return LimitedBoards(limits, reason=str(error))
