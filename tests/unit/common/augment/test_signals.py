"""Augmentations of time series and of tabular samples against their definitions; and which one suits which samples."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.augment import AUGMENTATIONS, choose_augmentation
from fedquilt_common.augment.signals import (
    NOISE,
    SCALING,
    SEGMENTS,
    WARP,
    about_axes,
    add_noise,
    augment_series,
    augment_table,
    permute,
    rotate,
    scale,
    warp,
)
from fedquilt_common.errors import DataUnavailableError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def series(channels: int = 6, time: int = 40, count: int = 500) -> NDArray[np.float32]:
    return rng(9).normal(3.0, 2.0, (count, channels, time)).astype(np.float32)


def test_jitter_is_noise_of_a_part_of_the_channels_spread() -> None:
    x = series() * np.array([1, 10, 100, 1, 1, 1], np.float32)[:, None]
    noise = (add_noise(x, rng()) - x).std(axis=(0, 2)) / x.std(axis=(0, 2))
    np.testing.assert_allclose(noise, NOISE, rtol=0.05)


def test_scaling_is_one_factor_for_each_channel_of_each_series() -> None:
    x = series()
    factor = scale(x, rng()) / x
    np.testing.assert_allclose(factor, factor[:, :, :1] * np.ones_like(x), rtol=1e-4)
    assert abs(factor.mean() - 1) < 0.02
    assert factor[:, :, 0].std() == pytest.approx(SCALING, rel=0.1)


def test_rotation_turns_triples_of_channels_alike() -> None:
    x = series()
    found = rotate(x, rng())
    lengths = np.linalg.norm(found.reshape(-1, 2, 3, 40), axis=2)
    np.testing.assert_allclose(lengths, np.linalg.norm(x.reshape(-1, 2, 3, 40), axis=2), rtol=1e-3)
    same = np.concatenate([x[:, :3], x[:, :3]], axis=1)
    turned = rotate(same, rng())
    np.testing.assert_allclose(turned[:, :3], turned[:, 3:], atol=1e-5)
    assert not np.allclose(found, x)


def test_matrices_about_an_axis() -> None:
    axis, angle = np.array([[0.0, 0.0, 1.0]]), np.array([np.pi / 2])
    np.testing.assert_allclose(about_axes(axis, angle)[0], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)


def test_two_channels_are_turned_in_their_plane() -> None:
    x = series(channels=2)
    found = rotate(x, rng())
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.linalg.norm(x, axis=1), rtol=1e-3)
    assert not np.allclose(found, x)


@pytest.mark.parametrize("time", [40, 43, SEGMENTS])
def test_permutation_keeps_pieces_and_all_channels_together(time: int) -> None:
    x = np.broadcast_to(np.arange(time, dtype=np.float32), (50, 3, time))
    found = permute(x, rng())
    assert (np.sort(found, axis=2) == x).all()
    assert (found[:, 0] == found[:, 2]).all()
    breaks = (np.diff(found[:, 0], axis=1) != 1).sum(axis=1)
    assert breaks.max() <= SEGMENTS - 1
    assert (found != x).any()


def test_a_warp_is_smooth_and_around_one() -> None:
    x = np.ones((400, 3, 100), np.float32)
    curve = warp(x, rng())
    assert abs(curve.mean() - 1) < 0.03
    assert 0.5 * WARP < curve.std() < 2 * WARP
    assert abs(np.diff(curve, n=2, axis=2)).max() < 0.05


@pytest.mark.parametrize("shape", [(6, 40), (1, 7), (2, 3), (4, 1)])
def test_series_of_any_shape(shape: tuple[int, int]) -> None:
    x = series(*shape, count=20)
    kept = x.copy()
    found = augment_series(x, rng())
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert np.isfinite(found).all()
    assert (x == kept).all()
    assert (found == augment_series(x, rng())).all()
    assert not np.allclose(found, x)


@pytest.mark.parametrize("count", [1, 2])
def test_few_series_of_which_no_step_changes_any(count: int) -> None:
    """FedReb fills a class with as few copies as it lacks; a step may choose none of them."""
    x = series(3, 16, count)
    changed = [augment_series(x, rng(seed)) for seed in range(20)]
    assert all(found.shape == x.shape and np.isfinite(found).all() for found in changed)


def test_tabular_features_keep_their_places() -> None:
    x = np.tile(np.array([1, 100, 10000], np.float32), (300, 1)) * rng(1).uniform(0.5, 1.5, (300, 3)).astype(np.float32)
    found = augment_table(x, rng())
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    np.testing.assert_allclose(found / x, 1, atol=0.8)
    np.testing.assert_allclose((found / x).mean(axis=0), 1, atol=0.05)


@pytest.mark.parametrize(
    ("shape", "name"), [((4, 3, 8, 8), "five-step"), ((4, 6, 40), "time-series"), ((4, 20), "tabular")]
)
def test_auto_goes_by_the_shape(shape: tuple[int, ...], name: str) -> None:
    x = np.zeros(shape, np.float32)
    assert choose_augmentation("auto", x) is AUGMENTATIONS[name][0] is choose_augmentation(name, x)
    assert (choose_augmentation("repeat", x)(x, rng()) == x).all()


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("auto", np.zeros((4, 20), np.int64)),
        ("auto", np.zeros((4, 1, 2, 3, 4), np.float32)),
        ("five-step", np.zeros((4, 6, 40), np.float32)),
        ("autoaugment", np.zeros((4, 20), np.float32)),
        ("time-series", np.zeros((4, 3, 8, 8), np.float32)),
        ("tabular", np.zeros((4, 20), np.int64)),
    ],
)
def test_what_does_not_suit_the_samples_is_refused(name: str, x: NDArray[np.float32]) -> None:
    with pytest.raises(DataUnavailableError, match=rf"algorithm.augmentation = {name}: .*; choose repeat"):
        choose_augmentation(name, x)
