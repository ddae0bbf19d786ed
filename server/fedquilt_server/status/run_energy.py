"""How the energy of a run is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedquilt_server.status.results import RoundResult

EnergyEstimate = Literal["", "partly estimated", "estimated"]


def describe_coverage(rows: Sequence[RoundResult]) -> str:
    """Return how many boards had reported energy by the last round, such as "1 of 3 boards"; empty if all had."""
    last = next((row for row in reversed(rows) if row.joules_boards is not None), None)
    if last is None or last.joules_boards is None or not last.joules_boards_missing:
        return ""
    return f"{last.joules_boards} of {last.joules_boards + last.joules_boards_missing} boards"


def describe_energy(rows: Sequence[RoundResult]) -> str:
    """Return what a reader must know of the rounds' energy, such as "estimated, 1 of 3 boards"; empty if nothing."""
    return ", ".join(text for text in (describe_estimate(rows), describe_coverage(rows)) if text)


def describe_estimate(rows: Sequence[RoundResult]) -> EnergyEstimate:
    """Return how much of the rounds' energy is an estimate; empty if none of it is."""
    known = [row for row in rows if row.joules is not None]
    if not any(row.joules_estimated for row in known):
        return ""
    return "partly estimated" if any(row.joules_measured for row in known) else "estimated"
