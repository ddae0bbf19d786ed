"""The samples of an audit: members, which clients trained on, and non-members of the same data set.

Both have the same classes in the same numbers. Otherwise the attack would detect the client's classes instead of its
samples.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.public import own_public
from fedquilt_common.datasets.shares import SampleIndices, take_samples
from fedquilt_common.errors import ExperimentError
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import ClientId, Examples
from fedquilt_server.lab.workbench import Workbench


@dataclass(frozen=True)
class Candidates:
    """The samples of one attacked model.

    Attributes:
        samples: members, then non-members; the shadow models train on halves of them.
        is_member: whether each sample is a member, bool of shape (n,).
        compared: positions of the samples on which the attack is measured, int64, as many members as non-members of
            each class.
        unused: number of non-members that are official training samples, which no client has trained on.
    """

    samples: Examples
    is_member: NDArray[np.bool_]
    compared: SampleIndices
    unused: int

    @property
    def members(self) -> SampleIndices:
        """Positions of the compared members, int64 of shape (n,)."""
        return self.compared[self.is_member[self.compared]]

    @property
    def others(self) -> SampleIndices:
        """Positions of the compared non-members, int64 of shape (n,)."""
        return self.compared[~self.is_member[self.compared]]


def find_candidates(bench: Workbench, clients: Collection[ClientId], seed: int) -> Candidates:
    """Return members and non-members for the model of some clients.

    Non-members are samples that no client of the experiment trained on, and that are not public. Official training
    samples come first, because test samples may come from other persons or days.

    Args:
        bench: derives the data set and the partition from the experiment.
        clients: the clients that trained the model; at least one.
        seed: chooses among several samples.

    Raises:
        ExperimentError: every sample of the data set was trained on.
        DataUnavailableError: the data set is missing or damaged.
    """
    trained = np.unique(np.concatenate([bench.shares[client].train for client in sorted(clients)]))
    free = _find_free(bench, seed)
    labels = _class_labels(bench)
    others = _take_each(free, labels, labels[trained])
    if not len(others):
        raise ExperimentError(
            f"data.set = {bench.experiment.data.set}: no sample of the clients' classes is left that no client trained "
            "on, so there is nothing to compare members with; audit a run with fewer clients, or with data.holdout"
        )
    mixed = np.random.Generator(np.random.PCG64(derive_seed(seed, "members"))).permutation(trained)
    chosen = _take_each(mixed, labels, labels[others])
    index = np.concatenate([trained, others])
    compared = np.flatnonzero(np.isin(index, np.concatenate([chosen, others])))
    official = len(bench.dataset.train)
    return Candidates(
        take_samples(bench.dataset, index), np.isin(index, trained), compared, int((others < official).sum())
    )


def _find_free(bench: Workbench, seed: int) -> SampleIndices:
    """Return the samples that no client trained on: official training samples at random, then test samples."""
    official, tests = len(bench.dataset.train), len(bench.dataset.test)
    taken = [own_public(bench.experiment, bench.raw_dataset), *(share.train for share in bench.shares)]
    free = np.setdiff1d(np.arange(official + tests), np.concatenate(taken))
    mixed = np.random.Generator(np.random.PCG64(derive_seed(seed, "non-members"))).permutation(free)
    return mixed[np.argsort(mixed >= official, kind="stable")]


def _class_labels(bench: Workbench) -> NDArray[np.int64]:
    """Return the class of each sample of the data set; 0 for a regression."""
    y = np.concatenate([bench.dataset.train.y, bench.dataset.test.y])
    return y if y.ndim == 1 and y.dtype.kind in "iu" else np.zeros(len(y), np.int64)


def _take_each(index: SampleIndices, labels: NDArray[np.int64], wanted: NDArray[np.int64]) -> SampleIndices:
    """Return the first of ``index`` of each class, at most as many as ``wanted`` has of it."""
    found = [index[labels[index] == label][: int((wanted == label).sum())] for label in np.unique(wanted)]
    return np.concatenate(found) if found else index[:0]
