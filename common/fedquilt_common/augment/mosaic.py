"""Mosaics for detection: four images around a random centre (Bochkovskiy et al., "YOLOv4", 2020, section 3.3).

Each of the four rectangles shows a random window of its image, at the image's own scale, because small objects would
vanish in smaller images. A box stays if at least a tenth of it is visible. FedAIoT's code has mosaics in its settings
(Alam et al., 2023); YOLO scales and shifts the result at random, too, which is left out here.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import Examples

Boxes = NDArray[np.float32]
"""Class, centre x, centre y, width and height as parts of the image, shape (..., boxes, 5); class -1: no box."""
VISIBLE: Final = 0.1
"""Least part of a box that must be visible."""
_NARROWEST: Final = 0.25
"""Least part of the side between the centre and an edge."""


def read_with_mosaics(data: Examples, index: NDArray[np.int64], share: float, seed: int) -> Examples:
    """Read a batch in which some images are mosaics: of the image itself and three others of ``data``.

    Args:
        data: images and their boxes.
        index: positions of the batch, shape (m,).
        share: probability that an image becomes a mosaic.
        seed: of all draws.

    Returns:
        m samples; ``data`` does not change.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    x, y = np.array(data.x[index]), np.array(data.y[index])
    for row in np.flatnonzero(rng.random(len(index)) < share):
        four = np.concatenate([index[[row]], rng.integers(len(data), size=3)])
        x[row], y[row] = make_mosaic(np.asarray(data.x[four]), data.y[four], rng)
    return Examples(x, y)


def make_mosaic(images: NDArray[Any], boxes: Boxes, rng: np.random.Generator) -> tuple[NDArray[Any], Boxes]:
    """Make one image of four.

    Args:
        images: shape (4, channels, height, width).
        boxes: shape (4, most, 5).
        rng: draws the centre and the windows.

    Returns:
        The image, and its boxes of shape (most, 5); if there are too many, the largest ones.
    """
    size = np.array(images.shape[:1:-1])  # width, height
    least = (_NARROWEST * size).astype(int)
    centre = rng.integers(least, size - least + 1)
    mosaic, found = np.empty_like(images[0]), list[Boxes]()
    for image, own, place in zip(images, boxes, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        start = np.where(place, centre, 0)
        extent = np.where(place, size - centre, centre)
        window = rng.integers(0, size - extent + 1)
        (rows, columns), (shown_rows, shown_columns) = _pixels(start, extent), _pixels(window, extent)
        mosaic[:, rows, columns] = image[:, shown_rows, shown_columns]
        found.append(move_boxes(own, window / size, extent / size, (start - window) / size))
    return mosaic, _fill(np.concatenate(found), boxes.shape[1])


def _pixels(start: NDArray[np.int64], extent: NDArray[np.int64]) -> tuple[slice, slice]:
    """Return the rows and the columns of a rectangle, from its left and top, and its width and height."""
    (left, top), (width, height) = start.tolist(), extent.tolist()
    return slice(top, top + height), slice(left, left + width)


def move_boxes(
    boxes: Boxes, window: NDArray[np.float64], extent: NDArray[np.float64], shift: NDArray[np.float64]
) -> Boxes:
    """Return the boxes that a window shows, cut at its edges and moved.

    Args:
        boxes: shape (most, 5).
        window: left and top of the window.
        extent: its width and height.
        shift: how far the boxes move to the right and down.

    Returns:
        Shape (m, 5).
    """
    known = boxes[boxes[:, 0] >= 0].astype(np.float64)
    first, last = known[:, 1:3] - known[:, 3:] / 2, known[:, 1:3] + known[:, 3:] / 2
    first, last = first.clip(window, window + extent), last.clip(window, window + extent)
    shown = np.prod(last - first, axis=1) >= VISIBLE * np.prod(known[:, 3:], axis=1)
    kept = shown & (last > first).all(axis=1)
    moved: Boxes = np.hstack([known[:, :1], (first + last) / 2 + shift, last - first])[kept].astype(np.float32)
    return moved


def _fill(boxes: Boxes, most: int) -> Boxes:
    """Return ``most`` boxes: the largest ones, or rows of class -1 after all of them."""
    if len(boxes) > most:
        boxes = boxes[np.sort(np.argsort(-boxes[:, 3] * boxes[:, 4], kind="stable")[:most])]
    filled = np.zeros((most, 5), dtype=np.float32)
    filled[:, 0] = -1
    filled[: len(boxes)] = boxes
    return filled
