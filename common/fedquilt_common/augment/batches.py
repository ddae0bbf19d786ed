"""Random crops and flips of the images of a training batch: ``training.augment``.

They are torchvision's ``RandomCrop(side, padding)`` and ``RandomHorizontalFlip``, in this order, as in the usual recipe
for CIFAR-10 (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2). That recipe pads with
black before it normalises, so the padding here is what black becomes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.augment.images import Images


def augment_batch(x: Images, padding: int, flip: bool, black: NDArray[Any], seed: int) -> Images:
    """Crop and mirror each image of a batch at random.

    Args:
        x: images of shape (n, channels, height, width).
        padding: greatest shift in pixels, from 0.
        flip: mirror images with probability 0.5.
        black: what the padding holds, of a shape that broadcasts to (channels, 1, 1).
        seed: of all draws.

    Returns:
        New images in the shape and dtype of ``x``.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    if padding:
        down, right = rng.integers(0, 2 * padding + 1, (2, len(x)))
        x = crop_padded(x, padding, down, right, black)
    return mirror(x, rng.random(len(x)) < 0.5) if flip else x


def crop_padded(
    x: Images, padding: int, down: NDArray[np.int64], right: NDArray[np.int64], black: NDArray[Any]
) -> Images:
    """Pad images on all sides, and crop each to the old size.

    Args:
        x: images of shape (n, channels, height, width).
        padding: pixels on each side.
        down: first row of each crop in the padded image, from 0 to twice the padding, shape (n,).
        right: first column, likewise.
        black: what the padding holds, of a shape that broadcasts to (channels, 1, 1).
    """
    count, channels, height, width = x.shape
    padded = np.empty((count, channels, height + 2 * padding, width + 2 * padding), x.dtype)
    padded[:] = black
    padded[:, :, padding : padding + height, padding : padding + width] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    cropped: Images = windows[np.arange(count), :, down, right]
    return cropped


def mirror(x: Images, which: NDArray[np.bool_]) -> Images:
    """Return images, of shape (n, channels, height, width), of which those in ``which``, (n,), are mirrored."""
    mirrored = np.array(x)
    mirrored[which] = x[which, :, :, ::-1]
    return mirrored
