"""What fits a client in one round, by its line of the fleet: a schedule, and noise from the run's seed.

AdaptiveFL's devices have resources that change and that the coordinator does not know (Jia et al., DAC 2024, section
3.1); the factor imitates that in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedquilt_common.experiment.sections import FleetLine
from fedquilt_common.seeds import derive_seed

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class RoundLimits:
    """What limits a client in one round besides the memory that its agent finds.

    Attributes:
        entries: the most numbers that a sub-model may have; None: any number.
        budget: the most bytes that training may take; None: there is no budget that changes.
    """

    entries: float | None = None
    budget: float | None = None


def limits_of(line: FleetLine, seed: int, round: int, client: int, count_entries: Callable[[str], int]) -> RoundLimits:
    """Return a client's limits in a round.

    Args:
        line: the client's line of the fleet.
        seed: the run's seed.
        round: its number, from 1.
        client: its number.
        count_entries: returns how many numbers the sub-model of a level has, by the level's name.
    """
    factor = draw_factor(line, seed, round, client)
    entries = factor * count_entries(_scheduled(line.fits, round)) if line.fits else None
    return RoundLimits(entries, _changing_budget(line, factor, round))


def _scheduled(entries: Sequence[_Item], round: int) -> _Item:
    """Return the entry of a round, from 1; after the last entry the schedule begins again."""
    return entries[(round - 1) % len(entries)]


def draw_factor(line: FleetLine, seed: int, round: int, client: int) -> float:
    """Draw the factor of what fits a client in a round: 1 without uncertainty, and never below 0.

    Args:
        line: the client's line of the fleet.
        seed: the run's seed.
        round: its number, from 1.
        client: its number.
    """
    if not line.uncertainty:
        return 1.0
    rng = np.random.default_rng(derive_seed(seed, "resources", round, client))
    return max(0.0, 1.0 + line.uncertainty * float(rng.standard_normal()))


def _changing_budget(line: FleetLine, factor: float, round: int) -> float | None:
    """Return the line's budget in bytes for one round; None if it has none, or one that the agent applies itself."""
    if line.budget is None or line.lasting_budget is not None:
        return None
    return factor * int(_scheduled(line.budget, round))
