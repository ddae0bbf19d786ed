"""Time series, shape (n, channels, time), and tabular samples, shape (n, features).

Jitter, scaling, rotation, permutation and magnitude warp of Um et al., "Data Augmentation of Wearable Sensor Data for
Parkinson's Disease Monitoring using Convolutional Neural Networks", ICMI 2017. Sizes are relative to the spread of
each channel over the batch, so that they suit data of any unit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Series = NDArray[Any]
Numbers = NDArray[np.float64]

NOISE: Final = 0.05
"""Standard deviation of the jitter, of the channel's own."""
SCALING: Final = 0.1
"""Standard deviation of the factor around 1."""
ROTATION: Final = 15.0
"""Degrees, to either side, about a random axis."""
SEGMENTS: Final = 4
WARP, KNOTS = 0.2, 4
"""Standard deviation of the smooth curve around 1, and its inner knots."""
APPLIED: Final = 0.5
"""Probability of each of the last three."""


def time_series(x: Series, rng: np.random.Generator) -> Series:
    """Jitter and scaling for every series; rotation, permutation and magnitude warp for half of them each."""
    count, channels, time = x.shape
    changed = scaled(jittered(x, rng), rng)
    for step, possible in ((rotated, channels > 1), (permuted, time >= SEGMENTS), (warped, time > 1)):
        if possible:
            chosen = np.flatnonzero(rng.random(count) < APPLIED)
            changed[chosen] = step(changed[chosen], rng)
    return changed


def tabular(x: Series, rng: np.random.Generator) -> Series:
    """Jitter and scaling: features have no order to be warped, permuted or rotated."""
    return scaled(jittered(x[..., None], rng), rng)[..., 0]


def jittered(x: Series, rng: np.random.Generator) -> Series:
    """Plus normal noise, independent for each value."""
    spread = x.std(axis=(0, 2), keepdims=True)
    return np.asarray(x + NOISE * spread * rng.standard_normal(x.shape), x.dtype)


def scaled(x: Series, rng: np.random.Generator) -> Series:
    """Each channel of each series times a factor of its own."""
    return (x * rng.normal(1.0, SCALING, (*x.shape[:2], 1))).astype(x.dtype)


def rotated(x: Series, rng: np.random.Generator) -> Series:
    """Turned in space: all triples of channels alike where there are triples (the axes of inertial sensors), else the
    plane of two channels at random."""
    channels = x.shape[1]
    angle = np.deg2rad(rng.uniform(-ROTATION, ROTATION, len(x)))
    if channels % 3 == 0:
        triples = x.reshape(len(x), channels // 3, 3, x.shape[2])
        turned = np.einsum("nij,ngjt->ngit", about_axes(_directions(len(x), rng), angle), triples)
        return np.asarray(turned.reshape(x.shape), x.dtype)
    return np.asarray(np.einsum("nij,njt->nit", _planes(channels, angle, rng), x), x.dtype)


def about_axes(axis: Numbers, angle: Numbers) -> Numbers:
    """Rotation matrices, shape (n, 3, 3), by Rodrigues' formula; ``axis`` (n, 3) of length 1, ``angle`` (n,)."""
    x, y, z = axis.T
    zero = np.zeros_like(x)
    cross = np.stack([np.stack(row, -1) for row in ([zero, -z, y], [z, zero, -x], [-y, x, zero])], -2)
    sine, cosine = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    return np.asarray(np.eye(3) + sine * cross + (1 - cosine) * (cross @ cross))


def _directions(count: int, rng: np.random.Generator) -> Numbers:
    found = rng.standard_normal((count, 3))
    unit: Numbers = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def _planes(channels: int, angle: Numbers, rng: np.random.Generator) -> Numbers:
    """Rotation matrices, shape (n, channels, channels), in the plane of two channels each."""
    which = np.argsort(rng.random((len(angle), channels)), axis=1)[:, :2]
    first, second, every = which[:, 0], which[:, 1], np.arange(len(angle))
    turn = np.tile(np.eye(channels), (len(angle), 1, 1))
    turn[every, first, first] = turn[every, second, second] = np.cos(angle)
    turn[every, first, second], turn[every, second, first] = -np.sin(angle), np.sin(angle)
    return turn


def permuted(x: Series, rng: np.random.Generator) -> Series:
    """Cut into ``SEGMENTS`` pieces of equal length (the last may be longer), which change places."""
    time = x.shape[2]
    bounds = np.arange(SEGMENTS) * (time // SEGMENTS)
    pieces = np.split(np.arange(time), bounds[1:])
    orders = np.argsort(rng.random((len(x), SEGMENTS)), axis=1)
    index = np.stack([np.concatenate([pieces[place] for place in order]) for order in orders])
    return np.take_along_axis(x, index[:, None, :], axis=2)


def warped(x: Series, rng: np.random.Generator) -> Series:
    """Times a smooth curve for each channel: a cubic spline through random values around 1."""
    from scipy.interpolate import CubicSpline  # not at the top: a board that only waits has no use for it

    count, channels, time = x.shape
    values = rng.normal(1.0, WARP, (KNOTS + 2, count, channels))
    curve = CubicSpline(np.linspace(0, time - 1, KNOTS + 2), values)(np.arange(time))
    changed: Series = (x * np.moveaxis(curve, 0, -1)).astype(x.dtype)
    return changed
