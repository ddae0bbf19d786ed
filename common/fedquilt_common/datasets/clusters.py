"""Clusters of similar inputs, as classes for a partition: scheme #2 of FedAIoT (Alam et al., 2023, section 3.2.1).

The paper clusters ImageNet features of VGG19 and calls the method K-nearest neighbours; neighbours make no clusters, so
this is k-means. Each machine computes the clusters itself and must get the same. So samples, components and centres are
rounded to whole numbers, whose sums are exact in float64 in any order, on any processor and number of threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.plurals import counted
from fedquilt_common.user_imports import resolve

log = logging.getLogger(__name__)
Whole = NDArray[np.float64]
"""Whole numbers as float64."""

EXTRACTORS: Final = {
    "pca": "fedquilt_common.datasets.clusters:extract_pca",
    "vgg19": "fedquilt_common.datasets.vgg19:extract_features",
}
COMPONENTS: Final = 16
_WIDEST = 1024
"""Longer samples are shortened: each value is the sum of neighbours."""
_ROWS = 4096
_VALUES = 1 << 22
"""Values that are processed at a time, so that memory never holds all images of a data set as numbers."""
_ITERATIONS = 100
_FAR = 256
"""Times by which inputs are farther from 0 than from each other, or an extreme input is larger than the others."""
_NOT_FINITE = "data.partition.clusters: samples or features are not finite; repair the data set"
_CLIPPED = 4
"""Times the usual largest value to which extreme inputs are clipped."""


def cluster_inputs(
    x: NDArray[Any], clusters: int, features: str, seed: int, allowed: Collection[str] = ()
) -> NDArray[np.int64]:
    """Assign each sample to a cluster of similar samples; the same on every machine.

    Args:
        x: samples of shape (n, ...).
        clusters: how many; there are fewer, and a warning in the log, if the samples have fewer different features.
        features: a name in ``EXTRACTORS``, or a user's ``package:factory``: a function of ``x`` that returns numbers of
            shape (n, m).
        seed: of the first centres.
        allowed: packages from which a user's function may come.

    Returns:
        int64 of shape (n,), from 0.

    Raises:
        ExperimentError: there are more clusters than samples, or the features have another shape.
        DataUnavailableError: samples or features are not finite, or VGG19's weights are missing or wrong.
    """
    if clusters > len(x):
        raise ExperimentError(f"data.partition.clusters = {clusters}: there are {len(x)} samples; choose fewer")
    extract: Callable[[NDArray[Any]], NDArray[Any]] = resolve(features, EXTRACTORS, "feature extractor", allowed)
    found = np.asarray(extract(x if features in EXTRACTORS else np.asarray(x)))
    if found.ndim != 2 or len(found) != len(x) or found.dtype.kind not in "biuf":
        raise ExperimentError(
            f"data.partition.features = {features}: returned {found.dtype} of shape {found.shape}; it must return "
            f"numbers of shape ({len(x)}, m)"
        )
    assigned = _find_clusters(_round_to_whole(found, 16, _largest(found)), clusters, seed)
    if (count := len(np.unique(assigned))) < clusters:
        log.warning("data.partition.clusters = %d: the samples have only %s", clusters, counted(count, "cluster"))
    return assigned


def extract_pca(x: NDArray[Any]) -> Whole:
    """Project samples on their first 16 principal components.

    Args:
        x: samples of shape (n, ...), which are read a few at a time. Samples of more than 1,024 values are shortened
            to about this many sums.

    Returns:
        Whole numbers of shape (n, m), m at most 16.
    """
    scale = _find_scale(x)
    short = np.concatenate([_shorten(_round_to_whole(scale.apply(rows), 11, scale.largest)) for rows in _blocks(x)])
    centred = short - np.rint(short.sum(axis=0, dtype=np.float64) / len(short)).astype(np.float32)
    scatter = np.zeros((short.shape[1],) * 2)
    for rows in _blocks(centred):
        scatter += rows.T.astype(np.float64) @ rows
    axes = _principal_axes(scatter)
    return np.concatenate([rows.astype(np.float64) @ axes for rows in _blocks(centred)])


def _principal_axes(scatter: Whole) -> Whole:
    """Return the first eigenvectors, times 256 and rounded, so that the last bits of LAPACK's results do not matter.

    Their signs differ between processors, too, but distances do not depend on them.
    """
    values, vectors = np.linalg.eigh(scatter)
    strong = (values > 1e-9 * max(values[-1], 1))[-COMPONENTS:]
    axes: Whole = np.rint(256 * vectors[:, -COMPONENTS:][:, strong])
    return axes if axes.shape[1] else np.zeros((len(scatter), 1))


def _find_clusters(points: Whole, clusters: int, seed: int) -> NDArray[np.int64]:
    """Run k-means (Lloyd) from centres of k-means++ (Arthur and Vassilvitskii, 2007), with whole numbers as centres."""
    centres = _first_centres(points, clusters, np.random.Generator(np.random.PCG64(seed)))
    nearest = _squared_distances(points, centres).argmin(axis=1)
    for _ in range(_ITERATIONS):
        counts = np.bincount(nearest, minlength=len(centres))
        sums = [np.bincount(nearest, column, len(centres)) for column in points.T]
        means = np.rint(np.stack(sums, axis=1) / np.maximum(counts, 1)[:, None])
        centres = np.where(counts[:, None] > 0, means, centres)
        before, nearest = nearest, _squared_distances(points, centres).argmin(axis=1)
        if np.array_equal(before, nearest):
            break
    return np.asarray(nearest, dtype=np.int64)


def _first_centres(points: Whole, clusters: int, rng: np.random.Generator) -> Whole:
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters and nearest.any():
        total = np.cumsum(nearest)
        chosen.append(int(np.searchsorted(total, rng.random() * total[-1], side="right")))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _squared_distances(points: Whole, centres: Whole) -> Whole:
    squares: Whole = (points * points).sum(axis=1)[:, None] - 2 * (points @ centres.T) + (centres * centres).sum(axis=1)
    return squares


@dataclass(frozen=True)
class _InputScale:
    """What the inputs have to become before they are rounded, so that differences between samples remain.

    Attributes:
        offset: is subtracted.
        largest: the greatest absolute value afterwards; larger ones are clipped.
    """

    offset: float
    largest: float

    def apply(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the inputs in this scale."""
        exact = rows.astype(np.float64)
        exact -= self.offset
        return exact.clip(-self.largest, self.largest, out=exact)


def _find_scale(x: NDArray[Any]) -> _InputScale:
    """Return the scale of inputs: of most, it is their own.

    Inputs that lie close together far from 0 lose this offset. Where less than 1 % of the samples have values far
    beyond those of the others, these are clipped. Both decisions depend on single values, not on sums.
    """
    highs = np.sort(np.concatenate([rows.max(axis=1).astype(np.float64) for rows in _blocks(x)]))
    lows = np.sort(np.concatenate([rows.min(axis=1).astype(np.float64) for rows in _blocks(x)]))
    if not (np.isfinite(highs).all() and np.isfinite(lows).all()):
        raise DataUnavailableError(_NOT_FINITE)
    few = (len(x) - 1) // 100
    high, low = float(highs[len(x) - 1 - few]), float(lows[few])
    offset = low if high - low < max(high, -low) / _FAR else 0.0
    usual, largest = max(high - offset, offset - low), max(float(highs[-1]) - offset, offset - float(lows[0]))
    return _InputScale(offset, _CLIPPED * usual if 0 < _FAR * usual < largest else max(largest, 0.0))


def _largest(values: NDArray[Any]) -> float:
    largest = float(max(values.max(initial=0), -values.min(initial=0).astype(np.float64)))
    if not np.isfinite(largest):
        raise DataUnavailableError(_NOT_FINITE)
    return largest


def _round_to_whole(values: NDArray[Any], bits: int, largest: float) -> Whole:
    """Scale ``values`` by a power of two, so that the largest has ``bits`` bits, and round them."""
    return np.rint(np.ldexp(values.astype(np.float64, copy=False), bits - int(np.frexp(largest)[1])))


def _shorten(rows: Whole) -> NDArray[np.float32]:
    width = -(-rows.shape[1] // _WIDEST)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % width)))
    return np.asarray(padded.reshape(len(rows), -1, width).sum(axis=2), dtype=np.float32)


def _blocks(samples: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Return the samples as rows of shape (m, values), a few at a time."""
    step = min(_ROWS, max(1, _VALUES // max(1, math.prod(samples.shape[1:]))))
    for start in range(0, len(samples), step):
        rows = np.asarray(samples[start : start + step])
        yield rows.reshape(len(rows), -1)
