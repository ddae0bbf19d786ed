"""Each step of the image augmentations against its definition, on images small enough to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.augment import images
from fedquilt_common.augment.autoaugment import auto_augment
from fedquilt_common.augment.images import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    crop,
    find_span,
    five_steps,
    flip,
    jitter_colours,
    rotation,
    shearing,
    transform_affine,
    translation,
)

ONE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def batch(channels: int = 3, side: int = 8, count: int = 6) -> NDArray[np.float32]:
    return np.random.default_rng(1).random((count, channels, side, side), dtype=np.float32)


def numbers(*values: float) -> NDArray[np.float64]:
    return np.array(values, np.float64)


def test_flips_mirror_only_whom_they_are_told_to() -> None:
    x = batch()
    which = np.array([True, False, True, False, False, True])
    found = flip(x, which)
    assert (found[which] == x[which][:, :, :, ::-1]).all()
    assert (found[~which] == x[~which]).all()


@pytest.mark.parametrize(("down", "right"), [(0, 0), (1, -2), (-1, 3), (4, 0)])
def test_a_crop_of_the_padded_image(down: int, right: int) -> None:
    x = batch(side=6)
    padded = np.pad(x, ((0, 0), (0, 0), (4, 4), (4, 4)), constant_values=0)
    expected = padded[:, :, 4 + down : 10 + down, 4 + right : 10 + right]
    assert (crop(x, np.full(len(x), down), np.full(len(x), right)) == expected).all()


def test_each_image_is_cropped_by_its_own_draw() -> None:
    x = np.concatenate([ONE, ONE])
    found = crop(x, np.array([0, 1]), np.array([0, 0]))
    assert (found[0] == ONE[0]).all()
    assert (found[1, 0, :3] == ONE[0, 0, 1:]).all()


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
def test_quarter_turns_are_exact(quarters: int) -> None:
    x = batch(side=7)
    found = transform_affine(x, rotation(np.full(len(x), 90.0 * quarters)))
    np.testing.assert_allclose(found, np.rot90(x, quarters, axes=(2, 3)), atol=1e-6)


def test_whole_pixels_are_moved_and_black_comes_in() -> None:
    found = transform_affine(ONE, translation(numbers(1), numbers(-2)))
    expected = np.zeros((4, 4))
    expected[:2, 1:] = ONE[0, 0, 2:, :3]
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-6)


def test_half_a_pixel_is_the_mean_of_two() -> None:
    found = transform_affine(ONE, translation(numbers(0.5), numbers(0)))
    np.testing.assert_allclose(found[0, 0, :, 1:], (ONE[0, 0, :, 1:] + ONE[0, 0, :, :-1]) / 2, atol=1e-6)


def test_a_shear_moves_rows_by_their_distance_from_the_middle() -> None:
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, :, 2] = 1.0
    found = transform_affine(x, shearing(numbers(1), numbers(0)))
    np.testing.assert_allclose(found[0, 0], np.eye(5), atol=1e-6)


def test_large_batches_go_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, maps = batch(), rotation(np.linspace(-30, 30, 6))
    whole = transform_affine(x, maps)
    monkeypatch.setattr(images, "_IMAGES_AT_A_TIME", 4)
    assert (transform_affine(x, maps) == whole).all()


def test_colours() -> None:
    x = batch()
    x[0, 0, 0, 0] = 0.0
    zero, one, half = np.zeros(6), np.ones(6), np.full(6, 0.5)
    for step in (adjust_brightness, adjust_contrast, adjust_saturation):
        np.testing.assert_allclose(step(x, one), x, atol=1e-6)
    np.testing.assert_allclose(adjust_brightness(x, half), x / 2, atol=1e-6)
    luma = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    mean = luma.mean(axis=(1, 2))[:, None, None, None]
    np.testing.assert_allclose(adjust_contrast(x, zero), np.broadcast_to(mean, x.shape), atol=1e-5)
    np.testing.assert_allclose(adjust_saturation(x, zero), np.broadcast_to(luma[:, None], x.shape), atol=1e-5)
    assert (jitter_colours(x, np.full(6, 9.0), one, one) <= 1).all()


@pytest.mark.parametrize("change", [five_steps, auto_augment])
def test_what_an_image_becomes_does_not_depend_on_the_shades_of_the_others(change: Any) -> None:
    """Black is 0 and white is 1 for pixels, even in a batch of bright images; other numbers have no such values."""
    bright = 0.4 + 0.2 * batch(3, 8, 40)
    others = np.concatenate([bright[:-1], np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)])
    assert (change(bright, np.random.default_rng(3))[:-1] == change(others, np.random.default_rng(3))[:-1]).all()
    assert find_span(bright) == find_span(bright[:0]) == (0, 1)
    assert find_span(np.array([0.2, 255.0])) == (0.2, 255.0)
    assert find_span(bright - 1) == (float((bright - 1).min()), float((bright - 1).max()))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("side", [8, 28])
def test_five_steps(channels: int, side: int) -> None:
    x = batch(channels, side, 100)
    kept = x.copy()
    found = five_steps(x, np.random.default_rng(3))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert -1e-6 <= found.min() <= found.max() <= 1 + 1e-6
    assert (x == kept).all()
    assert not any((a == b).all() for a, b in zip(found, x, strict=True))
    assert (found == five_steps(x, np.random.default_rng(3))).all()
    assert not (found == five_steps(x, np.random.default_rng(4))).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_strength_changes_images_more_or_less(channels: int) -> None:
    x = batch(channels, 12, 40).cumsum(axis=3) / 12  # smooth, so that a small change of place is a small one of values
    none, half, whole = (five_steps(x, np.random.default_rng(1), strength) for strength in (0.0, 0.5, 1.0))
    near, far = (np.abs(changed - none).mean() for changed in (half, whole))
    assert 0 < near < far


def test_grey_images_have_no_colour_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(images, "jitter_colours", refuse)
    five_steps(batch(1), np.random.default_rng(0))
    with pytest.raises(AssertionError):
        five_steps(batch(3), np.random.default_rng(0))


def test_changes_are_slight() -> None:
    """A disc in the middle stays mostly where it is."""
    y, x = np.mgrid[:28, :28] - 13.5
    disc = np.tile((x**2 + y**2 < 60).astype(np.float32), (200, 1, 1, 1))
    found = five_steps(disc, np.random.default_rng(0))
    assert np.mean(found * disc) / np.mean(disc) > 0.6
