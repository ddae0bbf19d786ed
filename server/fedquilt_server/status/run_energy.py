"""How the energy of a run is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedquilt_server.status.results import RoundResult

EnergyEstimate = Literal["", "partly estimated", "estimated"]


def describe_estimate(rows: Sequence[RoundResult]) -> EnergyEstimate:
    """Return how much of the rounds' energy is an estimate; empty if none of it is."""
    known = [row for row in rows if row.joules is not None]
    if not any(row.joules_estimated for row in known):
        return ""
    return "partly estimated" if any(row.joules_measured for row in known) else "estimated"
