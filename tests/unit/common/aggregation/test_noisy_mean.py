"""DP-FedAvg's mean: clipped updates, noise of the right size, and a clipping norm that finds its quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.noisy_mean import clip_factors, next_clip, noisy_mean, split_noise, update_norm
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import BLOCK


def models(count: int, seed: int = 0) -> list[Arrays]:
    rng = np.random.default_rng(seed)
    shapes = {"big.weight": (BLOCK // 2 + 3, 3), "bias": (5,), "scale": ()}
    return [{name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()} for _ in range(count)]


def test_without_clipping_and_noise_it_is_the_mean() -> None:
    base, *replies = models(5)
    got = noisy_mean(base, replies, [1.0] * 4, asked=4, std=0.0, rng=np.random.default_rng(0))
    usual = mean({client: Reply(arrays) for client, arrays in enumerate(replies)})
    for name, array in got.items():
        assert array.dtype == np.float32
        assert array.shape == base[name].shape
        np.testing.assert_allclose(array, usual[name], atol=3e-7)


def test_each_update_is_clipped_as_a_whole() -> None:
    base, *replies = models(4)
    norms = [update_norm(base, arrays) for arrays in replies]
    flat = [np.concatenate([(r[n].astype(float) - base[n]).ravel() for n in sorted(base)]) for r in replies]
    assert norms == pytest.approx([float(np.linalg.norm(each)) for each in flat], rel=1e-12)
    clip = sorted(norms)[1]
    factors = clip_factors(norms, clip)
    assert [factor * norm for factor, norm in zip(factors, norms, strict=True)] == pytest.approx(
        [min(norm, clip) for norm in norms]
    )
    got = noisy_mean(base, replies, factors, asked=3, std=0.0, rng=np.random.default_rng(0))
    sent = np.concatenate([got[name].ravel() for name in sorted(base)])
    start = np.concatenate([base[name].ravel() for name in sorted(base)])
    expected = start + sum(factor * each for factor, each in zip(factors, flat, strict=True)) / 3
    np.testing.assert_allclose(sent, expected, atol=3e-7)


def test_a_client_that_did_not_reply_counts_as_no_change() -> None:
    base, reply = models(2)
    got = noisy_mean(base, [reply], [1.0], asked=4, std=0.0, rng=np.random.default_rng(0))
    np.testing.assert_allclose(got["bias"], base["bias"] + (reply["bias"] - base["bias"]) / 4, atol=1e-6)


def test_the_noise_on_the_mean() -> None:
    base = {"weight": np.zeros(200_000, np.float32)}
    got = noisy_mean(base, [base], [1.0], asked=8, std=4.0, rng=np.random.default_rng(3))["weight"]
    assert float(got.std()) == pytest.approx(0.5, rel=0.01)
    assert abs(float(got.mean())) < 0.01


def test_an_update_that_is_not_finite_is_refused() -> None:
    base, reply = models(2)
    with pytest.raises(PayloadError, match="not finite"):
        update_norm(base, {**reply, "bias": np.full(5, np.nan, np.float32)})


@given(st.floats(0.1, 50), st.integers(1, 1000))
def test_both_noises_together_cost_what_is_counted(noise: float, asked: int) -> None:
    split = split_noise(noise, asked, adaptive=True)
    assert split.mean**-2 + (2 * split.count) ** -2 == pytest.approx(noise**-2)
    assert split.count >= asked / 20
    assert split_noise(noise, asked, adaptive=False).mean == noise


def test_the_clipping_norm_finds_its_quantile() -> None:
    rng, clip = np.random.default_rng(0), 0.01
    for _ in range(200):
        norms = [float(norm) for norm in rng.uniform(0, 10, 100)]
        clip = next_clip(clip, norms, 100, 5.0, rng, quantile=0.3, rate=0.2)
    assert clip == pytest.approx(3.0, rel=0.2)


def test_the_clipping_norm_moves_by_a_bounded_factor() -> None:
    """Equation of Andrew et al., algorithm 1, without noise: all updates are clipped, or none."""
    rng = np.random.default_rng(0)
    assert next_clip(1.0, [2.0] * 4, 4, 0.0, rng, 0.5, 0.2) == pytest.approx(math.exp(0.2 * 0.5))
    assert next_clip(1.0, [0.5] * 4, 4, 0.0, rng, 0.5, 0.2) == pytest.approx(math.exp(-0.2 * 0.5))
    assert next_clip(1.0, [], 4, 0.0, rng, 0.5, 0.2) == 1.0


def test_no_noise_moves_the_clipping_norm_further() -> None:
    rng, norms = np.random.default_rng(0), [0.5, 2.0]
    clips = {round(next_clip(1.0, norms, 2, 1000.0, rng, quantile=0.3, rate=0.2), 9) for _ in range(50)}
    assert (min(clips), max(clips)) == pytest.approx((math.exp(-0.2 * 0.7), math.exp(0.2 * 0.3)))
