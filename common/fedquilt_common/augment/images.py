"""Images: the 5-step augmentation of the FedReb thesis (section 5.4.1), each step a function of its own.

Random horizontal flip, random crop, random rotation, colour jitter (colour images only) and random affine map. The
thesis gives no magnitudes and says that the steps change images slightly; ours are the constants below. Images have
shape (n, channels, height, width) and any floating-point dtype, which the functions keep. Pixels from outside an image
are black (``find_span``). ``Numbers`` are float64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Images = NDArray[Any]
Numbers = NDArray[np.float64]
ValueRange = tuple[float, float]
"""The values of black and of white."""

FLIP_PROBABILITY: Final = 0.5
"""Probability of a flip."""
PADDING: Final = 1 / 8
"""Part of the side that is added on each side before the crop: 4 pixels of 32."""
ROTATION: Final = 15.0
"""Greatest angle in degrees, to either side."""
JITTER: Final = 0.2
"""Brightness, contrast and saturation are multiplied by 1 - 0.2 to 1 + 0.2."""
TRANSLATION, SCALE, SHEAR = 0.1, (0.9, 1.1), 10.0
"""Greatest part of the side, in either direction; least and greatest factor; greatest angle in degrees."""
_IMAGES_AT_A_TIME: Final = 256
GREY: Final = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue (ITU-R BT.601)."""


def five_steps(x: Images, rng: np.random.Generator, strength: float = 1.0) -> Images:
    """Apply all five steps in turn; images that do not have three channels skip the colour jitter.

    Args:
        x: images of shape (n, channels, height, width).
        rng: draws what each step does to each image.
        strength: factor of all magnitudes but the flip's probability, in [0, 1].

    Returns:
        New images in the shape and dtype of ``x``.
    """
    x = flip(x, rng.random(len(x)) < FLIP_PROBABILITY)
    pad = [max(1, round(strength * PADDING * side)) for side in x.shape[2:]]
    x = crop(x, *(rng.integers(-p, p + 1, len(x)) for p in pad))
    x = transform_affine(x, rotation(rng.uniform(-ROTATION, ROTATION, len(x)) * strength))
    if x.shape[1] == 3:
        jitter = JITTER * strength
        x = jitter_colours(x, *rng.uniform(1 - jitter, 1 + jitter, (3, len(x))))
    return transform_affine(x, _random_maps(len(x), x.shape[2:], rng, strength))


def find_span(x: Images) -> ValueRange:
    """Return the values of black and of white: 0 and 1 for pixels within them, else the batch's least and greatest."""
    if not x.size:
        return 0.0, 1.0
    least, greatest = float(x.min()), float(x.max())
    return (0.0, 1.0) if least >= 0 and greatest <= 1 else (least, greatest)


def flip(x: Images, which: NDArray[np.bool_]) -> Images:
    """Mirror images left to right.

    Args:
        x: images of shape (n, channels, height, width).
        which: whether to mirror each image, shape (n,).
    """
    return np.where(which[:, None, None, None], x[..., ::-1], x)


def crop(x: Images, down: NDArray[np.int64], right: NDArray[np.int64]) -> Images:
    """Pad images with black and crop them to the old size: pixel (i, j) comes from (i + down, j + right).

    Args:
        x: images of shape (n, channels, height, width).
        down: rows for each image, shape (n,).
        right: columns for each image, shape (n,).
    """
    height, width = x.shape[2:]
    rows, row_inside = _shifted_indices(down, height)
    columns, column_inside = _shifted_indices(right, width)
    taken = x[np.arange(len(x))[:, None, None, None], np.arange(x.shape[1])[:, None, None],
              rows[:, None, :, None], columns[:, None, None, :]]  # fmt: skip
    inside = row_inside[:, None, :, None] & column_inside[:, None, None, :]
    return np.where(inside, taken, find_span(x)[0]).astype(x.dtype)


def _shifted_indices(by: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Shifted indices, clipped to the image, and whether each was inside; both of shape (n, size)."""
    places = np.arange(size) + by[:, None]
    return places.clip(0, size - 1), (places >= 0) & (places < size)


def rotation(degrees: Numbers) -> Numbers:
    """Affine maps of shape (n, 2, 3) that turn images counter-clockwise about their middle; ``degrees``: (n,)."""
    angle = np.deg2rad(degrees)
    zero = np.zeros_like(angle)
    return _stack([[np.cos(angle), np.sin(angle), zero], [-np.sin(angle), np.cos(angle), zero]])


def shearing(across: Numbers, down: Numbers) -> Numbers:
    """Affine maps of shape (n, 2, 3) that add ``across`` * y to x, and ``down`` * x to y; both of shape (n,)."""
    one, zero = np.ones_like(across), np.zeros_like(across)
    return _stack([[one, across, zero], [down, one, zero]])


def translation(right: Numbers, down: Numbers) -> Numbers:
    """Affine maps of shape (n, 2, 3) that move images by ``right`` and ``down`` pixels, both of shape (n,)."""
    one, zero = np.ones_like(right), np.zeros_like(right)
    return _stack([[one, zero, right], [zero, one, down]])


def _random_maps(count: int, shape: tuple[int, ...], rng: np.random.Generator, strength: float) -> Numbers:
    """Random affine maps of shape (count, 2, 3): shear, scale, then translation."""
    angle = np.deg2rad(rng.uniform(-SHEAR, SHEAR, count) * strength)
    scale = 1 + (rng.uniform(*SCALE, count) - 1) * strength
    maps = shearing(np.tan(angle), np.zeros(count)) * scale[:, None, None]
    moved = rng.uniform(-TRANSLATION, TRANSLATION, (count, 2)) * strength * shape[::-1]
    maps[:, :, 2] = np.round(moved)
    return maps


def _stack(rows: list[list[Numbers]]) -> Numbers:
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def transform_affine(x: Images, maps: Numbers, black: float | None = None) -> Images:
    """Apply an affine map to each image, with interpolation between the four nearest pixels.

    Args:
        x: images of shape (n, channels, height, width).
        maps: from old to new places (x, y, 1) in pixels from the middle, shape (n, 2, 3).
        black: value of what comes from outside; None: that of ``find_span``.

    Returns:
        New images in the shape and dtype of ``x``.
    """
    result, outside = np.empty_like(x), find_span(x)[0] if black is None else black
    for start in range(0, len(x), _IMAGES_AT_A_TIME):
        some = slice(start, start + _IMAGES_AT_A_TIME)
        result[some] = _transform(x[some], maps[some], outside)
    return result


def _transform(x: Images, maps: Numbers, outside: float) -> Numbers:
    height, width = x.shape[2:]
    middle = np.array([(width - 1) / 2, (height - 1) / 2])
    new_y, new_x = np.mgrid[:height, :width]
    places = np.stack([new_x, new_y], axis=-1).reshape(-1, 2) - middle
    old = np.einsum("nij,npj->npi", np.linalg.inv(maps[:, :, :2]), places - maps[:, None, :, 2]) + middle
    corner = np.floor(old).astype(np.int64)
    part = old - corner
    total = np.zeros((len(x), x.shape[1], height * width))
    for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
        share = np.where(right, part[..., 0], 1 - part[..., 0]) * np.where(down, part[..., 1], 1 - part[..., 1])
        total += _values_at(x, corner + np.array([right, down]), outside) * share[:, None]
    return total.reshape(x.shape)


def _values_at(x: Images, places: NDArray[np.int64], outside: float) -> Numbers:
    """Values at the places (x, y), shape (n, p, 2), as an array of shape (n, channels, p)."""
    height, width = x.shape[2:]
    across, down = places[..., 0], places[..., 1]
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    flat = down.clip(0, height - 1) * width + across.clip(0, width - 1)
    taken = np.take_along_axis(x.reshape(len(x), x.shape[1], -1), flat[:, None], axis=2)
    return np.where(inside[:, None], taken, outside)


def jitter_colours(x: Images, brightness: Numbers, contrast: Numbers, saturation: Numbers) -> Images:
    """Change brightness, then contrast, then saturation; values stay from black to white.

    Args:
        x: images of shape (n, channels, height, width).
        brightness: factor for each image, shape (n,); 1 changes nothing.
        contrast: as ``brightness``.
        saturation: as ``brightness``.
    """
    x = adjust_brightness(x, brightness)
    x = adjust_contrast(x, contrast)
    return adjust_saturation(x, saturation)


def adjust_brightness(x: Images, factor: Numbers, span: ValueRange | None = None) -> Images:
    """Blend images, (n, channels, height, width), with black by ``factor``, shape (n,); 0 gives black."""
    return blend(x, np.full_like(x, (span or find_span(x))[0]), factor, span)


def adjust_contrast(x: Images, factor: Numbers, span: ValueRange | None = None) -> Images:
    """Blend images with their mean grey by ``factor``, shape (n,); 0 gives the mean grey."""
    return blend(x, to_grey(x).mean(axis=(2, 3), keepdims=True), factor, span)


def adjust_saturation(x: Images, factor: Numbers, span: ValueRange | None = None) -> Images:
    """Blend each pixel with its grey by ``factor``, shape (n,); 0 gives a grey image."""
    return blend(x, to_grey(x), factor, span)


def to_grey(x: Images) -> Images:
    """Convert images to grey ones of shape (n, 1, height, width).

    Three channels are weighted as red, green and blue; other numbers of channels are averaged.
    """
    weights = GREY if x.shape[1] == 3 else np.full(x.shape[1], 1 / x.shape[1])
    return np.asarray(np.einsum("nchw,c->nhw", x, weights)[:, None], x.dtype)


def blend(x: Images, other: Images, factor: Numbers, span: ValueRange | None = None) -> Images:
    """Blend two images: factor * x + (1 - factor) * other, clipped to ``span``.

    Args:
        x: images of shape (n, channels, height, width).
        other: images of a shape that broadcasts to that of ``x``.
        factor: for each image, shape (n,).
        span: the values of black and of white; None: those of ``find_span``.
    """
    share, (black, white) = factor[:, None, None, None], span or find_span(x)
    mixed: Images = (share * x + (1 - share) * other).clip(black, white).astype(x.dtype)
    return mixed
