"""Which settings of a training cannot be private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training

ALIKE: Final = "private training draws each sample alike, in fp32"


def find_unprivate_keys(training: Training) -> Iterator[str]:
    """Yield the keys of ``training`` whose values no private training can have."""
    if training.precision != "fp32":
        yield "precision"
    if training.sampling != "shuffled":
        yield "sampling"
