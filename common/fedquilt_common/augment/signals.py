"""Augmentation of time series, shape (n, channels, time), and tabular samples, shape (n, features).

Jitter, scaling, rotation, permutation and magnitude warp of Um et al., "Data Augmentation of Wearable Sensor Data for
Parkinson's Disease Monitoring using Convolutional Neural Networks", ICMI 2017. The size of the jitter is relative to
the spread of each channel over the batch, so it suits data of any unit. Samples are floating-point arrays; all
functions keep their shape and dtype.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.augment.images import Numbers

Series = NDArray[Any]

NOISE: Final = 0.05
"""Standard deviation of the jitter, as a part of the channel's own."""
SCALING: Final = 0.1
"""Standard deviation of the factor around 1."""
ROTATION: Final = 15.0
"""Greatest angle in degrees, to either side, about a random axis."""
SEGMENTS: Final = 4
"""Pieces that a permutation exchanges."""
WARP, KNOTS = 0.2, 4
"""Standard deviation of the smooth curve around 1, and the number of its inner knots."""
STEP_PROBABILITY: Final = 0.5
"""Probability of rotation, permutation and magnitude warp."""


def augment_series(x: Series, rng: np.random.Generator) -> Series:
    """Apply jitter and scaling to every series; rotation, permutation and magnitude warp each to half of them.

    Args:
        x: time series of shape (n, channels, time).
        rng: draws what changes, and how.
    """
    count, channels, time = x.shape
    changed = scale(add_noise(x, rng), rng)
    for step, possible in ((rotate, channels > 1), (permute, time >= SEGMENTS), (warp, time > 1)):
        chosen = np.flatnonzero(rng.random(count) < STEP_PROBABILITY) if possible else ()
        if len(chosen):  # of few series, a step may choose none
            changed[chosen] = step(changed[chosen], rng)
    return changed


def augment_table(x: Series, rng: np.random.Generator) -> Series:
    """Apply jitter and scaling to tabular samples, shape (n, features).

    The other steps need an order, which features do not have.
    """
    return scale(add_noise(x[..., None], rng), rng)[..., 0]


def add_noise(x: Series, rng: np.random.Generator) -> Series:
    """Add normal noise to each value of ``x``, shape (n, channels, time)."""
    spread = x.std(axis=(0, 2), keepdims=True)
    return np.asarray(x + NOISE * spread * rng.standard_normal(x.shape), x.dtype)


def scale(x: Series, rng: np.random.Generator) -> Series:
    """Multiply each channel of each series by a random factor; ``x`` has shape (n, channels, time)."""
    return (x * rng.normal(1.0, SCALING, (*x.shape[:2], 1))).astype(x.dtype)


def rotate(x: Series, rng: np.random.Generator) -> Series:
    """Rotate each series, shape (channels, time), in space.

    If the number of channels is a multiple of 3, all triples turn alike: they are the axes of inertial sensors.
    Otherwise the plane of two random channels turns.
    """
    channels = x.shape[1]
    angle = np.deg2rad(rng.uniform(-ROTATION, ROTATION, len(x)))
    if channels % 3 == 0:
        triples = x.reshape(len(x), channels // 3, 3, x.shape[2])
        turned = np.einsum("nij,ngjt->ngit", about_axes(_directions(len(x), rng), angle), triples)
        return np.asarray(turned.reshape(x.shape), x.dtype)
    return np.asarray(np.einsum("nij,njt->nit", _planes(channels, angle, rng), x), x.dtype)


def about_axes(axis: Numbers, angle: Numbers) -> Numbers:
    """Rotation matrices, float64 of shape (n, 3, 3), by Rodrigues' formula.

    Args:
        axis: unit vectors, shape (n, 3).
        angle: in radians, shape (n,).
    """
    x, y, z = axis.T
    zero = np.zeros_like(x)
    cross = np.stack([np.stack(row, -1) for row in ([zero, -z, y], [z, zero, -x], [-y, x, zero])], -2)
    sine, cosine = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    return np.asarray(np.eye(3) + sine * cross + (1 - cosine) * (cross @ cross))


def _directions(count: int, rng: np.random.Generator) -> Numbers:
    """Random unit vectors, shape (count, 3)."""
    vectors = rng.standard_normal((count, 3))
    unit: Numbers = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _planes(channels: int, angle: Numbers, rng: np.random.Generator) -> Numbers:
    """Rotation matrices, shape (n, channels, channels), each in the plane of two random channels."""
    which = np.argsort(rng.random((len(angle), channels)), axis=1)[:, :2]
    first, second, every = which[:, 0], which[:, 1], np.arange(len(angle))
    turn = np.tile(np.eye(channels), (len(angle), 1, 1))
    turn[every, first, first] = turn[every, second, second] = np.cos(angle)
    turn[every, first, second], turn[every, second, first] = -np.sin(angle), np.sin(angle)
    return turn


def permute(x: Series, rng: np.random.Generator) -> Series:
    """Cut each series, shape (channels, time), into ``SEGMENTS`` pieces and put them in random order.

    The pieces have the same length, except for the last, which may be longer.
    """
    time = x.shape[2]
    bounds = np.arange(SEGMENTS) * (time // SEGMENTS)
    pieces = np.split(np.arange(time), bounds[1:])
    orders = np.argsort(rng.random((len(x), SEGMENTS)), axis=1)
    index = np.stack([np.concatenate([pieces[place] for place in order]) for order in orders])
    return np.take_along_axis(x, index[:, None, :], axis=2)


def warp(x: Series, rng: np.random.Generator) -> Series:
    """Multiply each channel by a smooth curve: a cubic spline through random values around 1.

    ``x`` has shape (n, channels, time).
    """
    from scipy.interpolate import CubicSpline  # not at the top: it would cost an idle agent memory

    count, channels, time = x.shape
    values = rng.normal(1.0, WARP, (KNOTS + 2, count, channels))
    curve = CubicSpline(np.linspace(0, time - 1, KNOTS + 2), values)(np.arange(time))
    changed: Series = (x * np.moveaxis(curve, 0, -1)).astype(x.dtype)
    return changed
