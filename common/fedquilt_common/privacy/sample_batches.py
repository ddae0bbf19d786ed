"""How many samples a step of private training draws, and how many of them it computes at once."""

from __future__ import annotations

import math
from typing import Final

ROW_BYTES: Final = 256 << 20
"""Largest memory for the gradients of single samples (256 MiB). A constant, so that all boards get the same bits."""
_NUMBER_BYTES: Final = 4


def largest_draw(batch: int) -> int:
    """Return how many samples a step draws at most: the mean plus three standard deviations.

    The number is binomial, so one step in about a thousand draws more.

    Args:
        batch: samples that a step draws on average.
    """
    return math.ceil(batch + 3 * math.sqrt(batch))


def samples_at_once(parameters: int) -> int:
    """Return for how many samples the gradients are computed at once; the step adds up the rest in turn.

    Args:
        parameters: numbers that the training changes.
    """
    return max(1, ROW_BYTES // (_NUMBER_BYTES * max(1, parameters)))
