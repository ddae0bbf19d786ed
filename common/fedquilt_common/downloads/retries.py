"""How often a download is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST_WAIT: Final = 30.0
"""Seconds between two attempts, at most."""


@dataclass(frozen=True)
class Retries:
    """How often a download is repeated.

    Attributes:
        attempts: failures in a row after which it ends. A failure counts as the first if the part is longer
            than ever before in this download.
        first_wait: seconds before the first repetition; they double each time, up to 30 s.
    """

    attempts: int = 6
    first_wait: float = 1.0

    def wait_after(self, failures: int) -> float:
        """Return the seconds to wait after some failures in a row, from 1."""
        return min(LONGEST_WAIT, self.first_wait * 2.0 ** (failures - 1))
