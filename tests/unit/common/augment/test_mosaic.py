"""Mosaics: each pixel and each box comes from one of four images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common.augment.mosaic import _fill, make_mosaic, move_boxes, read_with_mosaics
from fedquilt_common.types import Examples

SIDE = 32


def scenes(count: int, seed: int = 0) -> Examples:
    """Return images with three coloured rectangles each, whose boxes have the class of the colour."""
    rng = np.random.default_rng(seed)
    x = np.zeros((count, 3, SIDE, SIDE), dtype=np.float32)
    y = np.full((count, 5, 5), -1, dtype=np.float32)
    for image, boxes in zip(x, y, strict=True):
        for colour in range(3):
            (left, top), (width, height) = rng.integers(0, 20, 2), rng.integers(4, 12, 2)
            image[colour, top : top + height, left : left + width] = 1
            boxes[colour] = [colour, (left + width / 2) / SIDE, (top + height / 2) / SIDE, width / SIDE, height / SIDE]
    return Examples(x, y)


def rectangle(box: NDArray[np.float32]) -> tuple[int, slice, slice]:
    """Return the colour, the rows and the columns of a box."""
    left, top = (box[1:3] - box[3:] / 2) * SIDE
    right, bottom = (box[1:3] + box[3:] / 2) * SIDE
    return int(box[0]), slice(round(top), round(bottom)), slice(round(left), round(right))


@given(st.integers(0, 2**32))
def test_boxes_lie_on_their_objects(seed: int) -> None:
    data = scenes(4, seed)
    x, y = make_mosaic(data.x, np.pad(data.y, ((0, 0), (0, 15), (0, 0)), constant_values=-1), np.random.default_rng(0))
    assert x.shape == (3, SIDE, SIDE)
    covered = np.zeros_like(x)
    for box in y[y[:, 0] >= 0]:
        assert x[rectangle(box)].all()
        covered[rectangle(box)] = 1
        assert ((box[1:3] - box[3:] / 2 >= -1e-6) & (box[1:3] + box[3:] / 2 <= 1 + 1e-6)).all()
    assert x[covered == 0].sum() < 0.1 * 12 * 4 * 144  # only slivers of objects have no box


def test_every_pixel_comes_from_one_of_four() -> None:
    images = np.stack([np.full((3, SIDE, SIDE), value, dtype=np.uint8) for value in range(4)])
    x, y = make_mosaic(images, np.full((4, 2, 5), -1, dtype=np.float32), np.random.default_rng(1))
    assert x.dtype == np.uint8
    assert x[0, [0, 0, -1, -1], [0, -1, 0, -1]].tolist() == [0, 1, 2, 3]
    assert (y[:, 0] == -1).all()


def test_every_pixel_of_an_image_can_be_drawn() -> None:
    images = np.tile(np.arange(16).reshape(4, 4), (4, 1, 1, 1))
    boxes = np.full((4, 2, 5), -1, dtype=np.float32)
    drawn = [make_mosaic(images, boxes, np.random.default_rng(seed))[0] for seed in range(100)]
    assert np.unique(drawn).tolist() == list(range(16))


def test_a_box_of_which_little_is_visible_is_left_out() -> None:
    boxes = np.array([[3, 0.5, 0.5, 0.4, 0.2], [1, 0.1, 0.5, 0.2, 0.2], [-1, 0, 0, 0, 0]], dtype=np.float32)
    window, extent = np.array([0.65, 0.0]), np.array([0.35, 1.0])
    assert move_boxes(boxes, window, extent, np.array([-0.65, 0.0])) == pytest.approx(
        np.array([[3, 0.025, 0.5, 0.05, 0.2]])
    )
    assert not len(move_boxes(boxes, window + np.array([0.02, 0]), extent, window))


def test_the_largest_boxes_stay() -> None:
    boxes = np.tile(np.array([0, 0.5, 0.5, 1, 1], dtype=np.float32), (4, 2, 1))
    boxes[:, 1, 3:] = 0.9
    _, y = make_mosaic(np.zeros((4, 3, SIDE, SIDE), dtype=np.float32), boxes, np.random.default_rng(0))
    assert y.shape == (2, 5)
    assert (y[:, 0] == 0).all()


def test_of_too_many_boxes_the_smallest_are_left_out() -> None:
    boxes = np.array([[side, 0.5, 0.5, side / 10, 0.4] for side in (5, 1, 9, 2, 7)], dtype=np.float32)
    assert _fill(boxes, 3)[:, 0].tolist() == [5, 9, 7]
    assert _fill(boxes, 6)[:, 0].tolist() == [5, 1, 9, 2, 7, -1]


def test_batches_by_seed() -> None:
    data, index = scenes(9), np.array([3, 3, 5, 0])
    plain = read_with_mosaics(data, index, 0.0, 1)
    assert np.array_equal(plain.x, data.x[index])
    assert np.array_equal(plain.y, data.y[index])
    first, again, other = (read_with_mosaics(data, index, 1.0, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.x, other.x)
    assert first.x.shape == (4, 3, SIDE, SIDE)
    assert np.array_equal(data.x, scenes(9).x)
