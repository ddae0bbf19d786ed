"""What a sensor of power or energy returns, and what every sensor has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

MOST_WATTS: Final = 5000.0
"""A larger reading is an error: no board draws that much."""


@dataclass(frozen=True)
class PowerSample:
    """The power now, in watts."""

    watts: float


@dataclass(frozen=True)
class EnergySample:
    """A counter of energy, in joules. Only the difference of two samples is an energy."""

    joules: float


PowerReading = PowerSample | EnergySample | None
"""None: the sensor gave no figure."""


class PowerSensor(Protocol):
    """A source of figures about the whole board.

    Attributes:
        name: for the log, such as ``INA3221 (VDD_IN)``.
        source: ``sensor``, ``meter`` or ``estimate``.
    """

    name: str
    source: str

    def read(self) -> PowerReading:
        """Read the sensor now; it may take a while."""


def is_power(watts: float) -> bool:
    """Return whether a board can draw this power; it cannot draw NaN."""
    return 0 <= watts <= MOST_WATTS


def read_number(path: Path) -> float | None:
    """Return the number in a file of sysfs; None if it cannot be read or holds none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def read_word(path: Path) -> str:
    """Return the text in a file of sysfs; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""
