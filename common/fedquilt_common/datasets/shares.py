"""Which client has which samples in an experiment; coordinator and boards compute it alike and compare digests.

Indices count through the official training samples and then, for ``data.mixed``, through the official test samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Algorithm, declaration_of
from fedquilt_common.datasets.partition import Scheme, partition_by
from fedquilt_common.datasets.public import own_public
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Dataset, Examples

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """One client's samples: those that it trains on, and those that it keeps for testing; ascending."""

    train: Indices
    test: Indices


def shares(experiment: Experiment, dataset: Dataset, holdout: float = 0.0) -> Sequence[Share]:
    """One share a client; ``holdout`` is the part of each that is kept for testing. Raises ExperimentError."""
    data, labels, subjects = experiment.data, dataset.train.y, dataset.subjects
    if data.mixed:
        labels, subjects = np.concatenate([labels, dataset.test.y]), None
    free = np.setdiff1d(np.arange(len(labels)), own_public(experiment, dataset))
    part = data.partition
    scheme = Scheme(
        part.scheme, part.alpha, part.min_samples, part.per_class, part.classes,
        None if subjects is None else subjects[free],
    )  # fmt: skip
    count, seed = part.shares or data.clients, derive_seed(experiment.seed, "partition")
    cut = [free[index] for index in partition_by(scheme, labels[free], count, seed)]
    return [_split(index, holdout, experiment.seed, client) for client, index in enumerate(cut[: data.clients])]


def _split(index: Indices, holdout: float, seed: int, client: int) -> Share:
    """At random, whatever the classes (scikit-learn's ``train_test_split``); one sample at least is trained on."""
    if holdout == 0 or len(index) < 2:
        return Share(index, index[:0])
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "holdout", client)))
    kept = max(1, math.floor(round((1 - holdout) * len(index), 9)))
    mixed = rng.permutation(index)
    return Share(np.sort(mixed[:kept]), np.sort(mixed[kept:]))


def holdout_of(experiment: Experiment, algorithm: Algorithm, dataset: Dataset) -> float:
    """Return the share of its samples, in [0, 1), that each client keeps for testing.

    Where the experiment does not set ``data.holdout``, the algorithm's ``Declaration`` decides.

    Raises:
        ExperimentError: the algorithm or the data set cannot be evaluated with this ``data.holdout`` or ``data.mixed``.
    """
    data, declared = experiment.data, declaration_of(algorithm)
    chosen = data.holdout if data.holdout is not None else (declared.holdout or 0.0)
    if chosen and declared.holdout is None:
        raise ExperimentError(
            f"data.holdout = {chosen}: '{experiment.algorithm.name}' is evaluated by the coordinator, on the data "
            "set's test split; remove it"
        )
    if chosen and not dataset.classes:
        raise ExperimentError(
            f"data.holdout = {chosen}: clients count right answers, but '{dataset.name}' has no classes; set it to 0"
        )
    if data.mixed and declared.coordinator_tests:
        raise ExperimentError(
            f"data.mixed = True: the coordinator tests the global model of '{experiment.algorithm.name}' on the "
            "official test samples, which are shared out then; set it to false"
        )
    if data.mixed and not chosen:
        raise ExperimentError(
            "data.mixed = True: the official test samples are shared out, so that the clients must keep some of "
            "theirs for testing; set data.holdout, such as 0.25"
        )
    return chosen


def clients_evaluate(algorithm: Algorithm) -> bool:
    """Whether only the clients can evaluate, because each holds a model of its own (``Declaration.own_models``).

    Clients that keep no samples for testing use the official test samples.
    """
    return declaration_of(algorithm).own_models


def take(dataset: Dataset, index: Indices) -> Examples:
    """The samples at ``index``, which counts on from the training to the test samples."""
    count = len(dataset.train)
    first = dataset.train.take(index[index < count])
    if len(first) == len(index):
        return first
    rest = dataset.test.take(index[index >= count] - count)
    return Examples(np.concatenate([first.x, rest.x]), np.concatenate([first.y, rest.y]))


def digest(cut: Sequence[Share]) -> str:
    """SHA-256 in hex of everyone's indices."""
    total = hashlib.sha256()
    for share in cut:
        for index in (share.train, share.test):
            total.update(len(index).to_bytes(8, "little") + index.astype("<i8").tobytes())
    return total.hexdigest()
