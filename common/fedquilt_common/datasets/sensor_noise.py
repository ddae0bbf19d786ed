"""Noise and lost readings in the inputs of training samples, as sensors have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import SensorNoise


def check_inputs(dtype: np.dtype[Any]) -> None:
    """Check that inputs of this type can be noisy: real numbers or bytes, not words or categories.

    Raises:
        ExperimentError: they are other whole numbers.
    """
    if dtype.kind != "f" and dtype != np.uint8:
        raise ExperimentError(
            f"data.sensor_noise: the inputs are {dtype}, such as words or categories, which have no noise; remove this "
            "section"
        )


def add_sensor_noise(x: NDArray[Any], noise: SensorNoise, seed: int) -> NDArray[Any]:
    """Add Gaussian noise to a client's inputs, and replace lost readings.

    Args:
        x: inputs, floats or uint8 of shape (n, *input_shape).
        noise: how strong, and which axis has the channels.
        seed: of the random draws; the same seed gives the same noise.

    Returns:
        A new array of the shape and dtype of ``x``; uint8 is rounded and clipped.

    Raises:
        ExperimentError: the inputs are whole numbers other than uint8.
    """
    check_inputs(x.dtype)
    channel = 1 if noise.channels == "first" else max(1, x.ndim - 1)
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    work = np.float64 if x.dtype == np.float64 else np.float32
    rng, noisy = np.random.Generator(np.random.PCG64(seed)), x.astype(work)
    if noise.std and len(x):
        scale = noise.std * x.std(axis=others, dtype=np.float64, keepdims=True)
        noisy += rng.standard_normal(x.shape, dtype=work) * scale.astype(work)
    if noise.lost and len(x):
        fill = x.mean(axis=others, dtype=np.float64, keepdims=True).astype(work) if noise.fill == "mean" else 0
        noisy = np.where(rng.random(x.shape, dtype=np.float32) < noise.lost, fill, noisy)
    if x.dtype == np.uint8:
        noisy = np.clip(np.rint(noisy), 0, 255)
    return noisy.astype(x.dtype)
