"""AutoAugment for images, with the policy that its authors found for CIFAR-10.

Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", CVPR 2019, table 7 of the appendix. Each image
gets one of 25 sub-policies. A sub-policy is two operations, each with a probability and a magnitude from 0 to 9.
The operations are defined for bytes; here black counts as 0 and white as 255 (``find_span``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.augment.images import (
    Images,
    Numbers,
    ValueRange,
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    blend,
    find_span,
    rotation,
    shearing,
    transform_affine,
    translation,
)

_BYTES: Final = 255

POLICY: Final = tuple(
    tuple((word.split("/")[0], float(word.split("/")[1]), int(word.split("/")[2])) for word in line.split())
    for line in """
    invert/0.1/7 contrast/0.2/6
    rotate/0.7/2 translate-x/0.3/9
    sharpness/0.8/1 sharpness/0.9/3
    shear-y/0.5/8 translate-y/0.7/9
    auto-contrast/0.5/8 equalize/0.9/2
    shear-y/0.2/7 posterize/0.3/7
    color/0.4/3 brightness/0.6/7
    sharpness/0.3/9 brightness/0.7/9
    equalize/0.6/5 equalize/0.5/1
    contrast/0.6/7 sharpness/0.6/5
    color/0.7/7 translate-x/0.5/8
    equalize/0.3/7 auto-contrast/0.4/8
    translate-y/0.4/3 sharpness/0.2/6
    brightness/0.9/6 color/0.2/8
    solarize/0.5/2 invert/0.0/3
    equalize/0.2/0 auto-contrast/0.6/0
    equalize/0.2/8 equalize/0.6/4
    color/0.9/9 equalize/0.6/6
    auto-contrast/0.8/4 solarize/0.2/8
    brightness/0.1/3 color/0.7/0
    solarize/0.4/5 auto-contrast/0.9/3
    translate-y/0.9/9 translate-y/0.7/9
    auto-contrast/0.9/2 solarize/0.8/3
    equalize/0.8/8 invert/0.1/3
    translate-y/0.7/9 auto-contrast/0.9/1
    """.strip().splitlines()
)
"""Sub-policies: (operation, probability, magnitude) twice."""


def auto_augment(x: Images, rng: np.random.Generator) -> Images:
    """Change each image by a sub-policy that is drawn for it.

    Args:
        x: floating-point images of shape (n, channels, height, width).
        rng: draws sub-policies, operations and directions.

    Returns:
        New images in the shape and dtype of ``x``.
    """
    span = find_span(x)
    x, drawn = x.copy(), rng.integers(len(POLICY), size=len(x))
    for number, steps in enumerate(POLICY):
        for name, probability, magnitude in steps:
            chosen = np.flatnonzero((drawn == number) & (rng.random(len(x)) < probability))
            if len(chosen):
                x[chosen] = apply_operation(name, magnitude, x[chosen], rng, span)
    return x


def apply_operation(name: str, magnitude: int, x: Images, rng: np.random.Generator, span: ValueRange) -> Images:
    """Apply one operation to all images; one with a direction takes either at random.

    Args:
        name: of the operation, such as ``rotate`` or ``solarize``.
        magnitude: from 0 to 9.
        x: floating-point images of shape (n, channels, height, width).
        rng: draws the direction for each image.
        span: the values of black and of white.

    Returns:
        New images in the shape and dtype of ``x``.
    """
    part, sign = magnitude / 9, rng.choice((-1.0, 1.0), len(x))
    if name in _MAPS:
        return transform_affine(x, _MAPS[name](part, sign, x), span[0])
    if name in _BLENDS:
        return _BLENDS[name](x, 1 + sign * 0.9 * part, span)
    if (width := span[1] - span[0]) <= 0:
        return np.array(x)
    values = np.rint((x - span[0]) / width * _BYTES).clip(0, _BYTES).astype(np.int64)
    return (_ON_BYTES[name](values, magnitude) / _BYTES * width + span[0]).astype(x.dtype)


def _adjust_sharpness(x: Images, factor: Numbers, span: ValueRange) -> Images:
    """Blend images with smoothed ones; factor 0 gives the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13.

    The border stays as it is.
    """
    smooth = x.copy()
    height, width = x.shape[2:]
    near = [x[:, :, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    smooth[:, :, 1:-1, 1:-1] = (sum(near) + 4 * near[4]) / 13
    return blend(x, smooth, factor, span)


def _auto_contrast(values: NDArray[np.int64], magnitude: int) -> Numbers:
    """Stretch each channel to the whole range; a channel of a single value stays as it is."""
    low, high = values.min(axis=(2, 3), keepdims=True), values.max(axis=(2, 3), keepdims=True)
    spread = np.where(high > low, high - low, 1)
    return np.asarray(np.where(high > low, np.rint((values - low) * (_BYTES / spread)), values), np.float64)


def _equalize(values: NDArray[np.int64], magnitude: int) -> NDArray[np.int64]:
    """Change the values of each channel so that all are about as frequent."""
    flat = values.reshape(-1, values.shape[2] * values.shape[3])
    return np.stack([_equalize_channel(channel) for channel in flat]).reshape(values.shape)


def _equalize_channel(channel: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.bincount(channel, minlength=_BYTES + 1)
    step = (counts.sum() - counts[counts > 0][-1]) // _BYTES
    if step == 0:
        return channel
    before = np.cumsum(counts) - counts
    table: NDArray[np.int64] = ((before + step // 2) // step).clip(0, _BYTES)
    return table[channel]


def _solarize(values: NDArray[np.int64], magnitude: int) -> NDArray[np.int64]:
    threshold = _BYTES * (9 - magnitude) / 9
    return np.where(values >= threshold, _BYTES - values, values)


def _posterize(values: NDArray[np.int64], magnitude: int) -> NDArray[np.int64]:
    """Keep the upper 8 to 4 bits of each value."""
    lost = round(magnitude / (9 / 4))
    return (values >> lost) << lost


_Maps = Callable[[float, Numbers, Images], Numbers]
_MAPS: Final[dict[str, _Maps]] = {
    "rotate": lambda part, sign, x: rotation(30 * part * sign),
    "shear-x": lambda part, sign, x: shearing(0.3 * part * sign, 0 * sign),
    "shear-y": lambda part, sign, x: shearing(0 * sign, 0.3 * part * sign),
    "translate-x": lambda part, sign, x: translation(np.trunc(150 / 331 * x.shape[3] * part * sign), 0 * sign),
    "translate-y": lambda part, sign, x: translation(0 * sign, np.trunc(150 / 331 * x.shape[2] * part * sign)),
}
_BLENDS: Final[dict[str, Callable[[Images, Numbers, ValueRange], Images]]] = {
    "brightness": adjust_brightness, "contrast": adjust_contrast,
    "color": adjust_saturation, "sharpness": _adjust_sharpness,
}  # fmt: skip
_ON_BYTES: Final[dict[str, Callable[[NDArray[np.int64], int], NDArray[Any]]]] = {
    "auto-contrast": _auto_contrast, "equalize": _equalize, "invert": lambda values, _: _BYTES - values,
    "posterize": _posterize, "solarize": _solarize,
}  # fmt: skip
