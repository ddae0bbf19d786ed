"""Augmentations by name: each takes samples of shape (n, ...) and a random generator, and returns changed samples.

The result has the shape and dtype of the samples. Augmentations process the whole batch at once. They need numpy and
scipy only, so their numbers do not depend on torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.augment.autoaugment import auto_augment
from fedquilt_common.augment.images import five_steps
from fedquilt_common.augment.signals import augment_series, augment_table
from fedquilt_common.errors import DataUnavailableError

Samples = NDArray[Any]
"""Samples of shape (n, ...)."""
Augmentation = Callable[[Samples, np.random.Generator], Samples]
"""From samples and a random generator to new samples of the same shape and dtype."""


def repeat(x: Samples, rng: np.random.Generator) -> Samples:
    """Return a copy of the samples, of shape (n, ...): plain random over-sampling."""
    copy: Samples = x.copy()
    return copy


AUGMENTATIONS: Final[dict[str, tuple[Augmentation, int | None]]] = {
    "five-step": (five_steps, 3),
    "autoaugment": (auto_augment, 3),
    "time-series": (augment_series, 2),
    "tabular": (augment_table, 1),
    "repeat": (repeat, None),
}
"""Function, and the number of dimensions that a sample must have; None: any."""
_BY_DIMENSIONS: Final = {3: "five-step", 2: "time-series", 1: "tabular"}


def choose_augmentation(name: str, x: Samples) -> Augmentation:
    """Choose an augmentation.

    Args:
        name: of ``AUGMENTATIONS``; ``auto`` chooses by the number of dimensions of a sample.
        x: the samples, of shape (n, ...).

    Raises:
        DataUnavailableError: it does not suit samples of this shape or dtype.
    """
    dimensions, is_float = x.ndim - 1, x.dtype.kind == "f"
    chosen = _BY_DIMENSIONS.get(dimensions if is_float else -1) if name == "auto" else name
    function, required = AUGMENTATIONS[chosen] if chosen else (repeat, -1)
    if required is not None and (required != dimensions or not is_float):
        raise DataUnavailableError(
            f"algorithm.augmentation = {name}: does not suit samples of shape {x.shape[1:]} and {x.dtype}; it needs "
            "floating-point images (channels, height, width), time series (channels, time) or features; choose repeat"
        )
    return function
