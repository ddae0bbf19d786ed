"""AutoAugment's operations against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedquilt_common.augment.autoaugment import POLICY, apply_operation, auto_augment

OPERATIONS = (
    "rotate", "shear-x", "shear-y", "translate-x", "translate-y", "brightness", "contrast", "color", "sharpness",
    "auto-contrast", "equalize", "invert", "posterize", "solarize",
)  # fmt: skip
SPAN = (0.0, 1.0)


def images(values: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(values / 255, np.float32)


def after(name: str, magnitude: int, values: NDArray[np.int64], seed: int = 0) -> NDArray[np.int64]:
    """Bytes in, bytes out."""
    found = apply_operation(name, magnitude, images(values), np.random.default_rng(seed), SPAN)
    return np.asarray(np.rint(found * 255), np.int64)


def some(channels: int = 3, count: int = 4) -> NDArray[np.int64]:
    return np.asarray(np.random.default_rng(5).integers(0, 256, (count, channels, 9, 9)))


def test_the_policy_has_25_pairs_of_known_operations() -> None:
    assert [len(steps) for steps in POLICY] == [2] * 25
    assert {name for steps in POLICY for name, _, _ in steps} < set(OPERATIONS)
    assert all(0 <= probability <= 1 and 0 <= magnitude <= 9 for steps in POLICY for _, probability, magnitude in steps)
    assert POLICY[1] == (("rotate", 0.7, 2), ("translate-x", 0.3, 9))


def test_operations_on_bytes() -> None:
    values = some()
    assert (after("invert", 7, values) == 255 - values).all()
    assert (after("solarize", 0, values) == np.where(values == 255, 0, values)).all()
    assert (after("solarize", 9, values) == 255 - values).all()
    assert (after("solarize", 3, values) == np.where(values >= 170, 255 - values, values)).all()
    assert (after("posterize", 9, values) == values // 16 * 16).all()
    assert (after("posterize", 7, values) == values // 8 * 8).all()
    assert (after("posterize", 0, values) == values).all()


def test_auto_contrast_uses_the_whole_range_of_each_channel() -> None:
    values = 50 + some() // 4
    found = after("auto-contrast", 0, values)
    assert (found.min(axis=(2, 3)) == 0).all()
    assert (found.max(axis=(2, 3)) == 255).all()
    flat = np.full((1, 1, 3, 3), 77)
    assert (after("auto-contrast", 0, flat) == flat).all()


def test_equalize_spreads_a_ramp_that_is_crowded() -> None:
    ramp = np.repeat(np.arange(64, 128), 64).reshape(1, 1, 64, 64)
    found = np.unique(after("equalize", 0, ramp))
    assert len(found) >= 60  # whole numbers of pixels a step
    assert found.min() == 0
    assert np.ptp(found) > 240
    assert (np.diff(found) > 0).all()
    flat = np.full((1, 2, 3, 3), 200)
    assert (after("equalize", 0, flat) == flat).all()


def test_equalize_is_that_of_pillow() -> None:
    values = np.random.default_rng(0).binomial(255, 0.4, (40, 30))
    expected = np.asarray(ImageOps.equalize(Image.fromarray(values.astype(np.uint8))))
    assert (after("equalize", 0, values[None, None]) == expected).all()


@pytest.mark.parametrize("name", OPERATIONS[9:])
def test_a_batch_of_a_single_value_stays_as_it_is(name: str) -> None:
    x = np.full((2, 1, 4, 4), 0.5, np.float32)
    assert (apply_operation(name, 9, x, np.random.default_rng(0), (0.5, 0.5)) == x).all()


def test_directions_are_drawn_for_each_image() -> None:
    x = np.zeros((40, 1, 9, 9), np.float32)
    x[:, :, :, 4] = 1.0
    found = apply_operation("translate-x", 9, x, np.random.default_rng(0), SPAN)
    moved = found[:, 0, 4].argmax(axis=1) - 4
    assert set(moved) == {-4, 4}  # 150 / 331 of 9 pixels, whole


def test_sharpness_leaves_the_border_and_smooths_or_sharpens_the_rest() -> None:
    values = some(1, 40)
    x = images(values)
    found = apply_operation("sharpness", 9, x, np.random.default_rng(0), SPAN)
    assert np.allclose(found[:, :, 0], x[:, :, 0])
    smooth = x[:, :, :-2, :-2] + x[:, :, :-2, 2:] + x[:, :, 2:, :-2] + x[:, :, 2:, 2:]
    smooth = (smooth + x[:, :, :-2, 1:-1] + x[:, :, 2:, 1:-1] + x[:, :, 1:-1, :-2] + x[:, :, 1:-1, 2:]
              + 5 * x[:, :, 1:-1, 1:-1]) / 13  # fmt: skip
    for image, blurred, result in zip(x[:, :, 1:-1, 1:-1], smooth, found[:, :, 1:-1, 1:-1], strict=True):
        options = [np.clip(f * image + (1 - f) * blurred, 0, 1) for f in (0.1, 1.9)]
        assert any(np.allclose(result, option, atol=1e-2) for option in options)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_shape_dtype_and_range(name: str) -> None:
    for magnitude in (0, 9):
        x = images(some())
        found = apply_operation(name, magnitude, x, np.random.default_rng(1), SPAN)
        assert (found.shape, found.dtype) == (x.shape, x.dtype)
        assert -1e-6 <= found.min() <= found.max() <= 1 + 1e-6


@pytest.mark.parametrize("name", ["rotate", "shear-x", "translate-y", "brightness", "contrast", "color", "sharpness"])
def test_an_operation_does_to_an_image_what_it_does_beside_others(name: str) -> None:
    bright, dark = 0.6 + images(some(count=1)) * 0.3, images(some(count=1)) * 0.3
    alone = apply_operation(name, 9, bright, np.random.default_rng(3), SPAN)
    beside = apply_operation(name, 9, np.concatenate([bright, dark]), np.random.default_rng(3), SPAN)
    assert (alone == beside[:1]).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_range(channels: int) -> None:
    x = images(some(channels, 200)) * 4 - 2
    found = auto_augment(x, np.random.default_rng(2))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert x.min() - 1e-5 <= found.min() <= found.max() <= x.max() + 1e-5
    changed = [not np.allclose(a, b) for a, b in zip(found, x, strict=True)]
    assert 0.5 < np.mean(changed) <= 1
    assert (found == auto_augment(x, np.random.default_rng(2))).all()
