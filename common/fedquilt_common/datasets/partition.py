"""Who gets which samples.

``dirichlet`` is scheme #1 of FedAIoT (Alam et al., 2023): each client draws a distribution over the classes
from Dir(alpha), and the clients' sizes come from Dir(alpha) too. The paper leaves open what happens where
the two ask for more of a class than there is; here each class is shared out in proportion to (size of the
client) x (its probability of the class), so that every sample is used once.

``dirichlet-per-class`` is that of Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks",
ICML 2019, which the FedReb thesis takes: for each class the clients' parts come from Dir(alpha), and a client that has
its equal share of all samples gets nothing of the classes that follow.

``per-class`` is that of the FedAKD thesis (section 3.7.3): equally many samples of each class that a client has, and
some clients have fewer classes. ``subject`` keeps each person's samples together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError

Counts = NDArray[np.int64]
_TRIES = 100


@dataclass(frozen=True)
class Scheme:
    """How samples are shared out: the fields of the experiment's section, and what the data set knows of its samples.

    ``subjects``: whose each sample is, shape (n,), if the data set says so.
    """

    name: str
    alpha: float | None = None
    min_samples: int = 1
    per_class: int | None = None
    classes: tuple[int, int] | None = None
    subjects: NDArray[np.integer] | None = None


def partition_by(scheme: Scheme, labels: NDArray[np.integer], clients: int, seed: int) -> list[NDArray[np.int64]]:
    """For each client the sorted indices of its samples, disjoint. ``labels`` has shape (n,).

    The same arguments give the same shares on every machine. Raises ExperimentError.
    """
    if scheme.name == "subject":
        return _by_subject(scheme.subjects, clients)
    if scheme.name == "per-class":
        _check(labels, clients, 1)
        _check_classes(labels, scheme.name)
        return _per_class(scheme, labels, clients, np.random.Generator(np.random.PCG64(seed)))
    return partition(labels, clients, scheme.name, scheme.alpha, scheme.min_samples, seed)


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
    if scheme not in _DRAWS:
        raise ExperimentError(f"data.partition.scheme = {scheme}: choose 'uniform' or one of {', '.join(_DRAWS)}")
    if alpha is None or not 0 < alpha < float("inf"):
        raise ExperimentError(f"data.partition.alpha = {alpha}: must be a number above 0")
    _check_classes(labels, scheme)
    least = min(min_samples, len(labels) // clients)
    return _dirichlet(labels, clients, least, rng, lambda per_class: _DRAWS[scheme](per_class, clients, alpha, rng))


def _check(labels: NDArray[np.integer], clients: int, min_samples: int) -> None:
    if clients < 1 or min_samples < 1:
        raise ExperimentError(
            f"data.clients = {clients}, data.partition.min_samples = {min_samples}: both must be 1 or more"
        )
    if clients > len(labels):
        raise ExperimentError(
            f"data.clients = {clients}: the data set has {len(labels)} samples, which is too few; have fewer clients"
        )


def _check_classes(labels: NDArray[np.integer], scheme: str) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ExperimentError(f"data.partition.scheme = {scheme}: the data set has no classes; choose 'uniform'")


def _by_subject(subjects: NDArray[np.integer] | None, clients: int) -> list[NDArray[np.int64]]:
    """Whole persons, dealt out in their order."""
    where = "data.partition.scheme = subject"
    if subjects is None:
        raise ExperimentError(f"{where}: the data set does not say whose samples they are; choose another scheme")
    persons = np.unique(subjects)
    if len(persons) < clients:
        raise ExperimentError(
            f"{where}: {clients} clients (data.clients) need as many persons; there are {len(persons)}"
        )
    return [np.flatnonzero(np.isin(subjects, persons[client::clients])) for client in range(clients)]


def _per_class(
    scheme: Scheme, labels: NDArray[np.integer], clients: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    kinds = np.unique(labels)
    each = int(scheme.per_class or 1)
    least, most = scheme.classes or (len(kinds), len(kinds))
    if most > len(kinds):
        raise ExperimentError(f"data.partition.classes = [{least}, {most}]: the data set has {len(kinds)} classes")
    has = np.zeros((clients, len(kinds)), dtype=bool)
    for client in range(clients):
        has[client, rng.permutation(len(kinds))[: rng.integers(least, most + 1)]] = True
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, owners in zip(kinds, has.T, strict=True):
        there, wanted = rng.permutation(np.flatnonzero(labels == kind)), int(owners.sum()) * each
        if wanted > len(there):
            raise ExperimentError(
                f"data.partition.per_class = {each}: {int(owners.sum())} clients want {wanted} samples of class "
                f"{kind}, there are {len(there)}; ask for fewer"
            )
        for place, client in enumerate(np.flatnonzero(owners).tolist()):
            shares[client].append(there[place * each : (place + 1) * each])
    return [np.sort(np.concatenate(share)) for share in shares]


def _dirichlet(
    labels: NDArray[np.integer], clients: int, least: int, rng: np.random.Generator, draw: Callable[[Counts], Counts]
) -> list[NDArray[np.int64]]:
    _, labels, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    counts = _best(least, lambda: draw(per_class))
    _top_up(counts, least)
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == kind))
        for share, piece in zip(shares, np.split(members, np.cumsum(column)[:-1]), strict=True):
            share.append(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def _best(least: int, draw: Callable[[], Counts]) -> Counts:
    """Samples by client and class; of 100 draws the first that gives each client enough, else the best."""
    best, best_least = np.zeros((0, 0), dtype=np.int64), -1
    for _ in range(_TRIES):
        counts = draw()
        smallest = int(counts.sum(axis=1).min())
        if smallest > best_least:
            best, best_least = counts, smallest
        if best_least >= least:
            break
    return best


def _by_client(per_class: Counts, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    sizes = rng.dirichlet(np.full(clients, alpha))
    classes = rng.dirichlet(np.full(len(per_class), alpha), size=clients)
    return _share_out(per_class, np.nan_to_num(sizes[:, None] * classes))


def _by_class(per_class: Counts, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    counts = np.zeros((clients, len(per_class)), dtype=np.int64)
    fair = int(per_class.sum()) / clients
    for kind, number in enumerate(per_class):
        parts = np.nan_to_num(rng.dirichlet(np.full(clients, alpha))) * (counts.sum(axis=1) < fair)
        counts[:, kind] = _share_out(np.array([number]), parts[:, None])[:, 0]
    return counts


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


_DRAWS: Final[Mapping[str, Callable[[Counts, int, float, np.random.Generator], Counts]]] = {
    "dirichlet": _by_client, "dirichlet-per-class": _by_class,
}  # fmt: skip
