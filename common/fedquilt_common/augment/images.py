"""Images: the 5-step augmentation of the FedReb thesis (section 5.4.1), each step a function of its own.

Random horizontal flip, random crop, random rotation, colour jitter (colour images only) and random affine map. The
thesis gives no magnitudes and says that they change images slightly; ours are the constants below. Images have shape
(n, channels, height, width). What comes in from outside has the least value of the batch, black.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Images = NDArray[Any]
Numbers = NDArray[np.float64]

FLIPPED: Final = 0.5
"""Probability."""
PADDING: Final = 1 / 8
"""Of the side, on each side, before cropping back: 4 pixels of 32."""
ROTATION: Final = 15.0
"""Degrees, to either side."""
JITTER: Final = 0.2
"""Brightness, contrast and saturation are multiplied by 1 - 0.2 to 1 + 0.2."""
TRANSLATION, SCALE, SHEAR = 0.1, (0.9, 1.1), 10.0
"""Of the side to either direction; factor; degrees to either side."""
_AT_A_TIME: Final = 256
GREY: Final = np.array([0.299, 0.587, 0.114])
"""Of red, green and blue (ITU-R BT.601)."""


def five_steps(x: Images, rng: np.random.Generator) -> Images:
    """All five, one after the other; four for images that have not three channels."""
    x = flipped(x, rng.random(len(x)) < FLIPPED)
    pad = [max(1, round(PADDING * side)) for side in x.shape[2:]]
    x = cropped(x, *(rng.integers(-p, p + 1, len(x)) for p in pad))
    x = affine(x, rotation(rng.uniform(-ROTATION, ROTATION, len(x))))
    if x.shape[1] == 3:
        x = jittered(x, *rng.uniform(1 - JITTER, 1 + JITTER, (3, len(x))))
    return affine(x, _random_maps(len(x), x.shape[2:], rng))


def flipped(x: Images, which: NDArray[np.bool_]) -> Images:
    """The images ``which``, shape (n,), mirrored left to right."""
    return np.where(which[:, None, None, None], x[..., ::-1], x)


def cropped(x: Images, down: NDArray[np.int64], right: NDArray[np.int64]) -> Images:
    """Padded with black and cropped to the old size: pixel (i, j) comes from (i + down, j + right), shape (n,) each."""
    height, width = x.shape[2:]
    rows, row_there = _shifted(down, height)
    columns, column_there = _shifted(right, width)
    taken = x[np.arange(len(x))[:, None, None, None], np.arange(x.shape[1])[:, None, None],
              rows[:, None, :, None], columns[:, None, None, :]]  # fmt: skip
    there = row_there[:, None, :, None] & column_there[:, None, None, :]
    return np.where(there, taken, x.min()).astype(x.dtype)


def _shifted(by: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Indices, shape (n, size), and which of them are inside."""
    places = np.arange(size) + by[:, None]
    return places.clip(0, size - 1), (places >= 0) & (places < size)


def rotation(degrees: Numbers) -> Numbers:
    """Maps of shape (n, 2, 3) that turn images counter-clockwise about their middle."""
    angle = np.deg2rad(degrees)
    zero = np.zeros_like(angle)
    return _stack([[np.cos(angle), np.sin(angle), zero], [-np.sin(angle), np.cos(angle), zero]])


def sheared(across: Numbers, down: Numbers) -> Numbers:
    """Maps of shape (n, 2, 3): x grows by ``across`` * y, y by ``down`` * x."""
    one, zero = np.ones_like(across), np.zeros_like(across)
    return _stack([[one, across, zero], [down, one, zero]])


def translated(right: Numbers, down: Numbers) -> Numbers:
    """Maps of shape (n, 2, 3) that move images by so many pixels."""
    one, zero = np.ones_like(right), np.zeros_like(right)
    return _stack([[one, zero, right], [zero, one, down]])


def _random_maps(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Shear, scale, then translation."""
    angle = np.deg2rad(rng.uniform(-SHEAR, SHEAR, count))
    maps = sheared(np.tan(angle), np.zeros(count)) * rng.uniform(*SCALE, count)[:, None, None]
    moved = rng.uniform(-TRANSLATION, TRANSLATION, (count, 2)) * shape[::-1]
    maps[:, :, 2] = np.round(moved)
    return maps


def _stack(rows: list[list[Numbers]]) -> Numbers:
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def affine(x: Images, maps: Numbers) -> Images:
    """Each image under its map (n, 2, 3) from old to new places (x, y, 1), counted in pixels from the middle; values
    are interpolated between the four nearest pixels."""
    result = np.empty_like(x)
    for start in range(0, len(x), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        result[some] = _affine(x[some], maps[some], x.min())
    return result


def _affine(x: Images, maps: Numbers, outside: float) -> Numbers:
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
        total += _pixels(x, corner + np.array([right, down]), outside) * share[:, None]
    return total.reshape(x.shape)


def _pixels(x: Images, places: NDArray[np.int64], outside: float) -> Numbers:
    """Values at (x, y) places, shape (n, p, 2); result (n, channels, p)."""
    height, width = x.shape[2:]
    across, down = places[..., 0], places[..., 1]
    there = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    flat = down.clip(0, height - 1) * width + across.clip(0, width - 1)
    taken = np.take_along_axis(x.reshape(len(x), x.shape[1], -1), flat[:, None], axis=2)
    return np.where(there[:, None], taken, outside)


def jittered(x: Images, brightness: Numbers, contrast: Numbers, saturation: Numbers) -> Images:
    """Colours multiplied by ``brightness``; then drawn to the image's mean grey by ``contrast``; then each pixel to
    its own grey by ``saturation``. Factors of shape (n,); 1 changes nothing. Values stay in the batch's range."""
    x = brightened(x, brightness)
    x = contrasted(x, contrast)
    return saturated(x, saturation)


def brightened(x: Images, factor: Numbers) -> Images:
    """0 gives black."""
    return blended(x, np.full_like(x, x.min()), factor)


def contrasted(x: Images, factor: Numbers) -> Images:
    """0 gives the image's mean grey."""
    return blended(x, grey(x).mean(axis=(2, 3), keepdims=True), factor)


def saturated(x: Images, factor: Numbers) -> Images:
    """0 gives each pixel's grey."""
    return blended(x, grey(x), factor)


def grey(x: Images) -> Images:
    """Shape (n, 1, height, width); the mean over the channels where they are not three."""
    weights = GREY if x.shape[1] == 3 else np.full(x.shape[1], 1 / x.shape[1])
    return np.asarray(np.einsum("nchw,c->nhw", x, weights)[:, None], x.dtype)


def blended(x: Images, other: Images, factor: Numbers) -> Images:
    """factor * x + (1 - factor) * other, within the range of ``x``."""
    share = factor[:, None, None, None]
    mixed: Images = (share * x + (1 - share) * other).clip(x.min(), x.max()).astype(x.dtype)
    return mixed
