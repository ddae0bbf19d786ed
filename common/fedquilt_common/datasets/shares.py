"""The partition of an experiment: which client holds which samples.

Coordinator and boards compute it from the same code and compare digests. Indices count the official training samples
first and then, with ``data.mixed``, the official test samples.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Algorithm, declaration_of
from fedquilt_common.datasets.label_noise import ChangedLabels, change_labels
from fedquilt_common.datasets.mapping import read_mapping
from fedquilt_common.datasets.partition import Scheme, check_smallest, partition_by
from fedquilt_common.datasets.pseudo_classes import classes_for
from fedquilt_common.datasets.public import own_public
from fedquilt_common.datasets.shard_files import Shard
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import Normalise
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.seeds import derive_seed
from fedquilt_common.stored_samples import join_samples
from fedquilt_common.types import Dataset, Examples

SampleIndices = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """Indices of one client's samples, int64, ascending.

    Args:
        train: of the samples that the client trains on, shape (n,).
        test: of the samples that it keeps for testing, shape (m,).
    """

    train: SampleIndices
    test: SampleIndices


@dataclass(frozen=True, eq=False)
class Shares(Sequence[Share]):
    """Many shares in two arrays: an array for each of 400,000 clients would take ten times the memory.

    Args:
        indices: of all shares, one after the other, each with its samples for training first; int64 of shape (n,).
        bounds: of each share in ``indices``: where its samples for training begin, where they end and those for
            testing begin, and where these end; int64 of shape (shares, 3).
    """

    indices: SampleIndices
    bounds: NDArray[np.int64]

    @classmethod
    def pack(cls, shares: Iterable[Share]) -> Shares:
        """Store shares, which are read one at a time."""
        indices, bounds = array("q"), array("q")
        for share in shares:
            bounds.append(len(indices))
            for index in (share.train, share.test):
                indices.frombytes(index.astype(np.int64).tobytes())
                bounds.append(len(indices))
        return cls(np.array(indices, np.int64), np.array(bounds, np.int64).reshape(-1, 3))

    def __len__(self) -> int:
        return len(self.bounds)

    @overload
    def __getitem__(self, place: int) -> Share: ...
    @overload
    def __getitem__(self, place: slice) -> Shares: ...
    def __getitem__(self, place: int | slice) -> Share | Shares:
        """Return a share, or a view of several."""
        if isinstance(place, slice):
            return Shares(self.indices, self.bounds[place])
        start, middle, end = self.bounds[place].tolist()
        return Share(self.indices[start:middle], self.indices[middle:end])


def shares(
    experiment: Experiment, dataset: Dataset, holdout: float = 0.0, allowed: Collection[str] = ()
) -> Sequence[Share]:
    """Partition the data set among the clients; the same on every machine.

    Args:
        experiment: gives the seed, the partition scheme and the number of clients.
        dataset: the samples to share out, without those that are public.
        holdout: the part of each share, in [0, 1), that the client keeps for testing; with ``overlap``, the part of all
            samples.
        allowed: packages from which a user's feature extractor may come.

    Returns:
        One share for each client, in client order, then those that no client has (``data.partition.shares``).

    Raises:
        ExperimentError: the data set cannot be partitioned as ``data.partition`` requires.
        DataUnavailableError: the file of a manual partition is missing or wrong.
    """
    cut = _cut(experiment, dataset, allowed)
    if experiment.data.partition.overlap:
        samples = _count_samples(experiment, dataset)
        return Shares.pack(_split_overlapping([*cut], samples, holdout, experiment.seed))
    return Shares.pack(_split(index, holdout, experiment.seed, client) for client, index in enumerate(cut))


def _count_samples(experiment: Experiment, dataset: Dataset) -> int:
    return len(dataset.train) + (len(dataset.test) if experiment.data.mixed else 0)


def _cut(experiment: Experiment, dataset: Dataset, allowed: Collection[str]) -> Iterable[SampleIndices]:
    """Return the indices of each share's samples, ascending."""
    data, part, labels, subjects = experiment.data, experiment.data.partition, dataset.train.y, dataset.subjects
    if data.mixed:
        _check_mixed(part.scheme, subjects)
        labels, subjects = np.concatenate([labels, dataset.test.y]), None
    free = np.setdiff1d(np.arange(len(labels)), own_public(experiment, dataset))
    if data.public is not None and not len(free):
        raise ExperimentError(
            f"data.public.samples = {data.public.samples}: all samples are public, so none are left for the clients; "
            "choose fewer"
        )
    count, seed = part.shares or data.clients, derive_seed(experiment.seed, "partition")
    if part.scheme == "manual":
        cut = read_mapping(str(part.file), part.sha256, count, free)
        check_smallest(cut, part.min_samples)
        return cut
    classes = classes_for(
        part,
        labels[free],
        lambda: take_samples(dataset, free).x,
        derive_seed(experiment.seed, "clusters"),
        allowed,
    )
    scheme = Scheme(
        part.scheme, part.alpha, part.min_samples, part.per_class, part.classes, part.labels, part.overlap,
        part.rounding or "largest-remainder", None if subjects is None else subjects[free],
    )  # fmt: skip
    return (free[index] for index in partition_by(scheme, classes, count, seed))


def _check_mixed(scheme: str, subjects: SampleIndices | None) -> None:
    if scheme in ("natural", "subject") and subjects is not None:
        raise ExperimentError(
            "data.mixed = True: the data set does not list the persons of its official test samples, which "
            f"data.partition.scheme = {scheme} needs; set data.mixed to false, or choose another scheme"
        )


def split_samples(samples: Examples, holdout: float, seed: int, client: int) -> Shard:
    """Split a client's own samples into those that it trains on and those that it keeps for testing.

    Args:
        samples: of the client.
        holdout: the part, in [0, 1), that it keeps for testing.
        seed: of the experiment.
        client: its number.
    """
    share = _split(np.arange(len(samples)), holdout, seed, client)
    return Shard(samples.take(share.train), samples.take(share.test))


def _split(index: SampleIndices, holdout: float, seed: int, client: int) -> Share:
    """Split at random without regard to classes, as scikit-learn's ``train_test_split``; keep a sample to train on."""
    if holdout == 0 or len(index) < 2:
        return Share(index, index[:0])
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "holdout", client)))
    kept = max(1, math.floor(round((1 - holdout) * len(index), 9)))
    mixed = rng.permutation(index)
    return Share(np.sort(mixed[:kept]), np.sort(mixed[kept:]))


def _split_overlapping(cut: Sequence[SampleIndices], samples: int, holdout: float, seed: int) -> list[Share]:
    """Split by one draw over all samples, so that no client trains on a sample that another one tests on.

    A client whose samples are all drawn for testing trains on the first of them, and nobody tests on it.

    Args:
        cut: for each client the indices of its samples, ascending.
        samples: number of samples of the data set.
        holdout: the part, in [0, 1), that is kept for testing.
        seed: of the experiment.
    """
    mixed = np.random.Generator(np.random.PCG64(derive_seed(seed, "holdout"))).permutation(samples)
    is_test = np.zeros(samples, dtype=bool)
    is_test[mixed[max(1, math.floor(round((1 - holdout) * samples, 9))) :]] = True
    for index in cut:
        if is_test[index].all():
            is_test[index[:1]] = False
    return [Share(index[~is_test[index]], index[is_test[index]]) for index in cut]


def holdout_of(experiment: Experiment, algorithm: Algorithm) -> float:
    """Return the share of its samples, in [0, 1), that each client keeps for testing.

    Where the experiment does not set ``data.holdout``, the algorithm's ``Declaration`` decides.

    Raises:
        ExperimentError: the algorithm cannot be evaluated with this ``data.holdout`` or ``data.mixed``.
    """
    data, declared, own_labels = experiment.data, declaration_of(algorithm), experiment.data.local_test == "own-labels"
    usual = 0.0 if own_labels else declared.holdout or 0.0
    chosen = data.holdout if data.holdout is not None else usual
    if (chosen or own_labels) and declared.holdout is None:
        key = f"data.holdout = {chosen}" if chosen else "data.local_test = own-labels"
        raise ExperimentError(
            f"{key}: '{experiment.algorithm.name}' is evaluated by the coordinator, on the data set's test split; "
            "remove this key; an algorithm of your own sets Declaration.holdout if its clients test"
        )
    if data.mixed and (declared.coordinator_tests or declared.holdout is None):
        raise ExperimentError(
            f"data.mixed = True: the coordinator tests the global model of '{experiment.algorithm.name}' on the "
            "official test samples, which this setting shares out; set it to false"
        )
    if data.mixed and not chosen:
        raise ExperimentError(
            "data.mixed = True: the official test samples are shared out, so each client must keep some of its samples "
            "for testing; set data.holdout, such as 0.25"
        )
    return chosen


def clients_evaluate(algorithm: Algorithm) -> bool:
    """Whether only the clients can evaluate, because each holds a model of its own (``Declaration.own_models``).

    Clients that keep no samples for testing use the official test samples.
    """
    return declaration_of(algorithm).own_models


def select_own_labels(official: Examples, own: NDArray[Any]) -> Examples:
    """Return the official test samples of the classes that a client has: ``data.local_test: own-labels``.

    Args:
        official: all official test samples, with classes of shape (n,).
        own: the labels of the client's training samples.
    """
    return official.take(np.flatnonzero(np.isin(official.y, np.unique(own))))


def take_labels(dataset: Dataset, index: SampleIndices) -> NDArray[Any]:
    """Return the labels of the samples that ``take_samples`` returns, which it copies."""
    count = len(dataset.train)
    return np.concatenate([dataset.train.y[index[index < count]], dataset.test.y[index[index >= count] - count]])


def take_samples(dataset: Dataset, index: SampleIndices) -> Examples:
    """Return the samples at ``index``, which counts the training samples first and then the test samples."""
    count = len(dataset.train)
    first = dataset.train.take(index[index < count])
    if len(first) == len(index):
        return first
    rest = dataset.test.take(index[index >= count] - count)
    return Examples(join_samples([first.x, rest.x]), np.concatenate([first.y, rest.y]))


def changed_labels(experiment: Experiment, dataset: Dataset, shares: Sequence[Share]) -> ChangedLabels:
    """Draw the wrong labels of ``data.label_noise`` among the samples that the clients train on.

    The noise is drawn after the partition, over all clients together (thesis of FedAIoT, section 2.2.3.5).

    Args:
        experiment: gives the seed and the noise.
        dataset: the samples, with their right labels.
        shares: the clients' samples. Those that they keep for testing stay right.

    Returns:
        The changed labels; none without label noise.

    Raises:
        ExperimentError: the data set has no classes, or too few labels can change.
        DataUnavailableError: the file of the matrix is missing or wrong.
    """
    noise = experiment.data.label_noise
    if noise is None:
        return ChangedLabels()
    labels = np.concatenate([dataset.train.y, dataset.test.y]) if experiment.data.mixed else dataset.train.y
    index = np.unique(np.concatenate([share.train for share in shares]))
    return change_labels(noise, labels, index, dataset.classes, derive_seed(experiment.seed, "label noise"))


def digest_shares(
    shares: Sequence[Share], changed: ChangedLabels | None = None, normalise: Normalise | None = None
) -> str:
    """Return the SHA-256, in hex, of all clients' indices, the labels that noise changes, and the inputs' scale."""
    total = hashlib.sha256()
    for share in shares:
        for index in (share.train, share.test):
            total.update(len(index).to_bytes(8, "little") + index.astype("<i8").tobytes())
    if changed is not None and len(changed):
        total.update(changed.index.astype("<i8").tobytes() + changed.labels.astype("<i8").tobytes())
    if normalise is not None:
        total.update(f"normalise {normalise.mean} {normalise.std}".encode())
    return total.hexdigest()
