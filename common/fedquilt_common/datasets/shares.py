"""Which client has which samples in an experiment; coordinator and boards compute it alike and compare digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.partition import partition
from fedquilt_common.experiment import Experiment
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Dataset

Shares = Sequence[NDArray[np.int64]]


def shares(experiment: Experiment, dataset: Dataset) -> Shares:
    """Indices into the training samples, one array a client."""
    data = experiment.data
    return partition(
        dataset.train.y,
        data.clients,
        scheme=data.partition.scheme,
        alpha=data.partition.alpha,
        min_samples=data.partition.min_samples,
        seed=derive_seed(experiment.seed, "partition"),
    )


def digest(cut: Shares) -> str:
    """SHA-256 in hex of everyone's indices."""
    total = hashlib.sha256()
    for index in cut:
        total.update(len(index).to_bytes(8, "little") + index.astype("<i8").tobytes())
    return total.hexdigest()
