"""The statistics of static norms: pooled over clients, they are those of all samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.aggregation.exact_numbers import to_bits
from fedquilt_common.aggregation.norm_statistics import pool_statistics
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Segment

MEAN, VARIANCE = NAMES = ("norm.running_mean", "norm.running_var")
NET = Anatomy((), {name: ArrayAnatomy((3,), "float32", ((Segment(None, 3),),)) for name in NAMES}, statistics=NAMES)


def reply(samples: Any) -> Reply:
    """Return a client's statistics of samples of shape (n, 3)."""
    return Reply({MEAN: to_bits(samples.mean(0)), VARIANCE: to_bits(samples.var(0))}, len(samples))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([0.0, 10.0, 1e4]), st.integers(0, 99))
def test_pooled_statistics_are_those_of_all_samples(sizes: list[int], offset: float, seed: int) -> None:
    """A mean far from 0 costs a small variance no digits."""
    parts = [np.random.default_rng([seed, n]).normal(offset, 1.0, (size, 3)) for n, size in enumerate(sizes)]
    pooled = pool_statistics({client: reply(part) for client, part in enumerate(parts)}, NET)
    together = np.concatenate(parts)
    np.testing.assert_allclose(pooled[MEAN], together.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pooled[VARIANCE], together.var(0), rtol=1e-5, atol=1e-9)
    assert pooled["norm.num_batches_tracked"] == 1


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf, 1e300, -1e300])
def test_whatever_bits_a_client_sends_the_statistics_are_finite(hostile: float) -> None:
    bad = Reply(dict.fromkeys(NAMES, to_bits(np.full(3, hostile))), 5)
    pooled = pool_statistics({0: reply(np.eye(3)), 1: bad}, NET)
    assert all(np.isfinite(pooled[name]).all() for name in NAMES)


def test_no_variance_is_negative() -> None:
    bad = Reply({MEAN: to_bits(np.zeros(3)), VARIANCE: to_bits(np.full(3, -9.0))}, 5)
    assert (pool_statistics({0: bad}, NET)[VARIANCE] == 0).all()


def test_stored_statistics_of_an_earlier_version_are_the_numbers_themselves() -> None:
    stored = Reply({MEAN: np.full(3, 2, np.float32), VARIANCE: np.full(3, 4, np.float32)}, 5)
    pooled = pool_statistics({0: stored}, NET)
    assert (pooled[MEAN].tolist(), pooled[VARIANCE].tolist()) == ([2, 2, 2], [4, 4, 4])
