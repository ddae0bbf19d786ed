"""The noisy mean of clients' updates: DP-FedAvg, with a clipping norm that can follow the updates.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, algorithm 1, with clients of
equal weight and a fixed number of them in a round. Andrew et al., "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import BLOCK, block

_COUNT_PART: Final = 20
"""The noise on the number of unclipped updates is the asked clients divided by this (Andrew et al., section 3)."""


@dataclass(frozen=True)
class NoiseSplit:
    """How the noise of a round is divided between the mean and the number of updates that are not clipped.

    Attributes:
        mean: standard deviation of the noise on the sum of clipped updates, in clipping norms.
        count: standard deviation of the noise on the number; 0 if the clipping norm does not change.
    """

    mean: float
    count: float


def split_noise(noise: float, asked: int, *, adaptive: bool) -> NoiseSplit:
    """Return the noise on both results, which together cost the privacy of ``noise`` (Andrew et al., theorem 1).

    Args:
        noise: standard deviation of the noise, in clipping norms, that the accountant counts.
        asked: clients that the round asks.
        adaptive: whether the clipping norm follows the updates.
    """
    if not adaptive:
        return NoiseSplit(noise, 0.0)
    count = max(asked / _COUNT_PART, noise)  # the paper's choice, but enough even where few clients take part
    return NoiseSplit((noise**-2 - (2 * count) ** -2) ** -0.5, count)


def update_norm(base: Arrays, trained: Arrays) -> float:
    """Return the L2 norm of what training has changed in all arrays together.

    Args:
        base: the arrays before the training.
        trained: the arrays after it, in the same shapes.

    Raises:
        PayloadError: the change is not finite.
    """
    squares = [float(np.vdot(change, change)) for name in sorted(trained) for change in _changes(base, trained, name)]
    norm = math.sqrt(math.fsum(squares))
    if not math.isfinite(norm):
        raise PayloadError("a client's update is not finite, so it cannot be clipped")
    return norm


def clip_factors(norms: Sequence[float], clip: float) -> list[float]:
    """Return the factor, at most 1, that gives each update a norm of at most ``clip``."""
    return [min(1.0, clip / norm) if norm else 1.0 for norm in norms]


def noisy_mean(
    base: Arrays, replies: Sequence[Arrays], factors: Sequence[float], asked: int, std: float, rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Return the base plus the noisy mean of the clipped updates.

    Args:
        base: what the clients received.
        replies: their trained arrays, all of the same names and shapes, in client order.
        factors: of each update.
        asked: number of clients that were asked; one that did not reply counts as an update of 0.
        std: standard deviation of the noise on the sum.
        rng: draws the noise.

    Returns:
        The arrays that the replies have, float32, in the shapes of ``base``.
    """
    result = {}
    for name in sorted(replies[0]):
        mean = np.empty(base[name].shape, np.float32)
        flat, first = mean.reshape(-1), 0
        for changes in zip(*(_changes(base, reply, name) for reply in replies), strict=True):
            last = first + len(changes[0])
            total = rng.normal(0.0, std, last - first)
            for factor, change in zip(factors, changes, strict=True):
                total += factor * change
            flat[first:last] = block(base, name, first, last) + total / asked
            first = last
        result[name] = mean
    return result


def _changes(base: Arrays, trained: Arrays, name: str) -> Iterator[NDArray[np.float64]]:
    """Yield what training has changed in one array, block by block, each flattened."""
    size = math.prod(base[name].shape)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        yield block(trained, name, start, stop).astype(np.float64) - block(base, name, start, stop)


def next_clip(
    clip: float,
    norms: Sequence[float],
    asked: int,
    noise: float,
    rng: np.random.Generator,
    quantile: float,
    rate: float,
) -> float:
    """Return the clipping norm of the next round.

    Args:
        clip: that of this round.
        norms: of the updates.
        asked: number of clients that were asked; one that did not reply counts as half.
        noise: standard deviation of the noise on the number of updates that are not clipped.
        rng: draws the noise.
        quantile: target fraction of updates that stay unclipped (gamma in the paper).
        rate: how fast the norm follows.
    """
    centred = sum((norm <= clip) - 0.5 for norm in norms)
    part = 0.5 + (centred + rng.normal(0.0, noise)) / asked
    return clip * math.exp(-rate * (min(1.0, max(0.0, part)) - quantile))
