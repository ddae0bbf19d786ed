"""Which trainings cannot be private, by their settings and by their number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training

ALIKE: Final = "private training draws each sample alike, in fp32"


def find_refused_keys(training: Training) -> Iterator[str]:
    """Yield the keys of ``training`` whose values no private training can have."""
    if training.precision != "fp32":
        yield "precision"
    if training.sampling != "shuffled":
        yield "sampling"
    if training.drop_last:
        yield "drop_last"


def size_problem(samples: int, batch: int, delta: float) -> str:
    """Return why a client has too few or too many samples to train privately, and what to do; empty if it can.

    Args:
        samples: that the client trains on.
        batch: samples that a step draws on average.
        delta: of the client's guarantee.
    """
    if samples < batch:
        return (
            f"the client has fewer samples than a batch of {batch}, so that each step would use all of them; choose a "
            "smaller training.batch, or give each client more (data.partition.min_samples)"
        )
    if delta >= 1 / samples:
        return (
            f"the client's privacy.delta = {delta:g} allows a sample to leak whole; choose one below 1/n for its n "
            "samples"
        )
    return ""
