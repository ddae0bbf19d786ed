"""Who gets which samples.

``dirichlet`` is scheme #1 of FedAIoT (Alam et al., 2023): each client draws a distribution over the classes
from Dir(alpha), and the clients' sizes come from Dir(alpha) too. The paper leaves open what happens where
the two ask for more of a class than there is; here each class is shared out in proportion to (size of the
client) x (its probability of the class), so that every sample is used once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError

Counts = NDArray[np.int64]
_TRIES = 100


def partition(
    labels: NDArray[np.integer], clients: int, scheme: str, alpha: float | None, min_samples: int, seed: int
) -> list[NDArray[np.int64]]:
    """For each client the sorted indices of its samples: disjoint, and together all of them.

    ``labels`` has shape (n,). Each client gets at least ``min_samples``, or n // ``clients`` where there are
    not enough for that. The same arguments give the same shares on every machine. Raises ExperimentError.
    """
    _check(labels, clients, min_samples)
    rng = np.random.Generator(np.random.PCG64(seed))
    if scheme == "uniform":
        return [np.sort(share) for share in np.array_split(rng.permutation(len(labels)), clients)]
    if scheme != "dirichlet":
        raise ExperimentError(f"data.partition.scheme = {scheme}: choose 'dirichlet' or 'uniform'")
    if alpha is None or not 0 < alpha < float("inf"):
        raise ExperimentError(f"data.partition.alpha = {alpha}: must be a number above 0")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ExperimentError("data.partition.scheme = dirichlet: the data set has no classes; choose 'uniform'")
    return _dirichlet(labels, clients, alpha, min(min_samples, len(labels) // clients), rng)


def _check(labels: NDArray[np.integer], clients: int, min_samples: int) -> None:
    if clients < 1 or min_samples < 1:
        raise ExperimentError(
            f"data.clients = {clients}, data.partition.min_samples = {min_samples}: both must be 1 or more"
        )
    if clients > len(labels):
        raise ExperimentError(
            f"data.clients = {clients}: the data set has {len(labels)} samples, which is too few; have fewer clients"
        )


def _dirichlet(
    labels: NDArray[np.integer], clients: int, alpha: float, least: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    _, labels, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    counts = _draw(per_class, clients, alpha, least, rng)
    _top_up(counts, least)
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == kind))
        for share, piece in zip(shares, np.split(members, np.cumsum(column)[:-1]), strict=True):
            share.append(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def _draw(per_class: Counts, clients: int, alpha: float, least: int, rng: np.random.Generator) -> Counts:
    """Samples by client and class; of 100 draws the first that gives each client enough, else the best."""
    best, best_least = np.zeros((clients, len(per_class)), dtype=np.int64), -1
    for _ in range(_TRIES):
        sizes = rng.dirichlet(np.full(clients, alpha))
        classes = rng.dirichlet(np.full(len(per_class), alpha), size=clients)
        counts = _share_out(per_class, np.nan_to_num(sizes[:, None] * classes))
        smallest = int(counts.sum(axis=1).min())
        if smallest > best_least:
            best, best_least = counts, smallest
        if best_least >= least:
            break
    return best


def _share_out(per_class: Counts, weights: NDArray[np.float64]) -> Counts:
    """Each class in proportion to ``weights`` (clients, classes), rounded by largest remainder."""
    total = weights.sum(axis=0)
    weights = np.where(total > 0, weights, 1.0)
    quota = weights / weights.sum(axis=0) * per_class
    counts: Counts = np.floor(quota).astype(np.int64)
    rank = np.argsort(np.argsort(counts - quota, axis=0, kind="stable"), axis=0, kind="stable")
    counts += rank < per_class - counts.sum(axis=0)
    return counts


def _top_up(counts: Counts, least: int) -> None:
    """Move samples from the largest client's largest class to whoever has fewer than ``least``."""
    sizes = counts.sum(axis=1)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            kind = int(counts[rich].argmax())
            moved = min(int(least - sizes[poor]), int(sizes[rich]) - least, int(counts[rich, kind]))
            moved = max(1, moved // 2)  # by halves, so that one client does not pay for all
            counts[rich, kind] -= moved
            counts[poor, kind] += moved
            sizes[rich] -= moved
            sizes[poor] += moved
