"""The scale of an experiment's inputs: ``data.normalise``, applied when a batch of samples is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import Normalise
from fedquilt_common.stored_samples import Scaling, scale_samples
from fedquilt_common.types import Dataset, Examples


def normalise_samples(x: NDArray[Any], normalise: Normalise | None) -> NDArray[Any]:
    """Normalise samples of shape (n, channels, ...), which stay as they are stored until they are read.

    Raises:
        ExperimentError: the samples are no floating-point numbers, or have another number of channels.
    """
    if normalise is None:
        return x
    channels = x.shape[1] if x.ndim > 1 else 1
    if x.dtype.kind != "f":
        raise ExperimentError(
            f"data.normalise: the inputs are {x.dtype}, such as words or categories, which have no scale; remove it"
        )
    for key in ("mean", "std"):
        numbers = getattr(normalise, key)
        if len(numbers) not in (1, channels):
            raise ExperimentError(
                f"data.normalise.{key}: has {len(numbers)} numbers, but the samples have {channels} channels; give one "
                "number, or one for each channel"
            )
    return scale_samples(x, Scaling(normalise.mean, normalise.std))


def normalise_dataset(dataset: Dataset, normalise: Normalise | None) -> Dataset:
    """Normalise training and test samples. Raises as ``normalise_samples``."""
    train, test = (Examples(normalise_samples(part.x, normalise), part.y) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


def normalised_black(input_shape: Sequence[int], normalise: Normalise | None) -> NDArray[Any]:
    """Return what black, which is 0, becomes: float32 of shape (channels, 1, 1) for pictures, otherwise (1,)."""
    if len(input_shape) != 3 or normalise is None:
        return np.zeros(1, np.float32)
    black: NDArray[Any] = np.asarray(normalise_samples(np.zeros((1, input_shape[0], 1, 1), np.float32), normalise))
    return black.reshape(-1, 1, 1)
