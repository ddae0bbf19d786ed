"""Augmentations by name: functions from samples, shape (n, ...), and a random generator to as many changed samples.

They are vectorised over the batch and need numpy and scipy only, so that their numbers do not depend on torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.augment.autoaugment import auto_augment
from fedquilt_common.augment.images import five_steps
from fedquilt_common.augment.signals import tabular, time_series
from fedquilt_common.errors import DataUnavailableError

Samples = NDArray[Any]
Augmentation = Callable[[Samples, np.random.Generator], Samples]


def repeat(x: Samples, rng: np.random.Generator) -> Samples:
    """The samples as they are: random over-sampling."""
    same: Samples = x.copy()
    return same


AUGMENTATIONS: Final[dict[str, tuple[Augmentation, int | None]]] = {
    "five-step": (five_steps, 3),
    "autoaugment": (auto_augment, 3),
    "time-series": (time_series, 2),
    "tabular": (tabular, 1),
    "repeat": (repeat, None),
}
"""Function, and the number of dimensions of a sample that it is for; None: any."""
_BY_DIMENSIONS: Final = {3: "five-step", 2: "time-series", 1: "tabular"}


def augmentation(name: str, x: Samples) -> Augmentation:
    """The augmentation called ``name``; ``auto`` takes the one for samples such as those in ``x``, shape (n, ...).

    Raises DataUnavailableError where it is not for such samples.
    """
    dimensions, numbers = x.ndim - 1, x.dtype.kind == "f"
    chosen = _BY_DIMENSIONS.get(dimensions if numbers else -1) if name == "auto" else name
    function, wanted = AUGMENTATIONS[chosen] if chosen else (repeat, -1)
    if wanted is not None and (wanted != dimensions or not numbers):
        raise DataUnavailableError(
            f"algorithm.augmentation = {name}: is not for samples of shape {x.shape[1:]} and {x.dtype}; images are "
            "(channels, height, width), time series (channels, time), both of floating-point numbers; choose repeat"
        )
    return function
