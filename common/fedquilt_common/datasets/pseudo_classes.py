"""The classes by which a partition divides samples: labels, bins of targets, or clusters of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.clusters import cluster_inputs
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.data_section import Partition


def classes_for(
    part: Partition, y: NDArray[Any], inputs: Callable[[], NDArray[Any]], seed: int, allowed: Collection[str] = ()
) -> NDArray[Any]:
    """Return what the partition scheme takes as the samples' classes.

    Args:
        part: the partition; its ``bins`` or ``clusters`` replace the labels.
        y: labels or targets of the samples, shape (n,) or (n, outputs).
        inputs: returns the samples, shape (n, ...); called for ``clusters`` only.
        seed: of the clusters.
        allowed: packages from which a user's feature extractor may come.

    Returns:
        int64 of shape (n,), or ``y`` without bins and clusters.

    Raises:
        ExperimentError: the data set has no single target, or the clusters cannot be made.
        DataUnavailableError: targets or inputs are not finite, or VGG19's weights are missing or wrong.
    """
    if part.bins is not None:
        return quantile_bins(y, part.bins)
    if part.clusters is not None:
        return cluster_inputs(inputs(), part.clusters, part.features or "pca", seed, allowed)
    return y


def quantile_bins(y: NDArray[Any], bins: int) -> NDArray[np.int64]:
    """Divide targets by their quantiles, into bins of about equally many samples (FedAIoT, section 3.2.1, scheme #3).

    Equal targets share a bin, so ties make bins uneven or empty. The limits between bins are targets themselves, and
    not interpolated: then no rounding error decides about a sample.

    Args:
        y: floats of shape (n,) or (n, 1).
        bins: how many, at least 2.

    Returns:
        The bin of each sample, int64 of shape (n,), from 0.

    Raises:
        ExperimentError: the data set has classes, or several targets.
        DataUnavailableError: a target is not finite.
    """
    where = f"data.partition.bins = {bins}"
    if y.dtype.kind != "f":
        raise ExperimentError(f"{where}: the data set has classes; bins are for regression, so remove this key")
    if y.ndim > 1 and y.size != len(y):
        raise ExperimentError(
            f"{where}: the samples have {y[0].size} targets, bins need one; set data.partition.clusters instead, or "
            "choose 'uniform'"
        )
    flat = y.reshape(-1)
    if not np.isfinite(flat).all():
        raise DataUnavailableError(f"{where}: sample {int(np.flatnonzero(~np.isfinite(flat))[0])} has no finite target")
    if not len(flat):
        return np.empty(0, dtype=np.int64)
    ranks = -(-np.arange(1, bins) * (len(flat) - 1) // bins)  # the first sample at or above each quantile
    return np.searchsorted(np.sort(flat)[ranks], flat, side="right").astype(np.int64)
