"""The boards of a simulation that have limits: whether they are enforced, and the record of that in the run folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from fedquilt_common.experiment.experiment import agent_specs
from fedquilt_common.files.durable import write_atomically
from fedquilt_server.simulate.board_limits import BoardLimits, Limiter, LimitsError, find_limiter
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.plan import SimulationPlan

RECORD: Final = "limits.json"
"""The file in the run folder; there is none if no board has limits."""


@dataclass(frozen=True)
class LimitedBoards:
    """The limits of the boards that have some, by agent.

    Attributes:
        limiter: enforces them; None: nothing does.
        reason: why nothing does.
    """

    limits: Mapping[str, BoardLimits] = field(default_factory=dict)
    limiter: Limiter | None = None
    reason: str = ""

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
        boards = f"{len(self.limits)} board{'s' * (len(self.limits) != 1)}"
        what = f"The limits of {boards} (fleet.N.memory, fleet.N.cpus) are"
        if self.limiter is not None:
            return f"{what} enforced by {self.limiter.name}"
        return f"{what} not enforced: {self.reason}"

    def save(self, folder: Path) -> None:
        """Write the record."""
        record = {
            "enforced": self.limiter is not None,
            "by": self.limiter.name if self.limiter is not None else None,
            "reason": self.reason,
            "boards": {name: asdict(limits) for name, limits in self.limits.items()},
        }
        write_atomically(folder / RECORD, json.dumps(record, indent=2) + "\n")


@contextlib.contextmanager
def limit_boards(plan: SimulationPlan, report: Callable[[str], None]) -> Iterator[LimitedBoards]:
    """Find what enforces the limits of the fleet, report and record it; the groups are removed after the block.

    Args:
        report: called with a sentence, if any board has limits.
    """
    boards = _find(plan)
    if boards.limits:
        report(boards.describe())
        boards.save(plan.folder)
    try:
        yield boards
    finally:
        if boards.limiter is not None:
            boards.limiter.close()


def _find(plan: SimulationPlan) -> LimitedBoards:
    agents = agent_specs(plan.experiment.fleet)
    limits = {agent.name: BoardLimits.of_line(agent.line) for agent in agents}
    limits = {name: one for name, one in limits.items() if one.controllers}
    if not limits:
        return LimitedBoards()
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
