"""Partition a data set's samples among clients.

``dirichlet`` is scheme #1 of FedAIoT (Alam et al., 2023): each client draws a distribution over the classes from
Dir(alpha), and the clients' sizes come from Dir(alpha) too. The paper does not define the case that both together need
more samples of a class than there are. Here each class is divided in proportion to (size of the client) x (its
probability of the class), so that every sample is used once.

``dirichlet-per-class`` is the scheme of Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural
Networks", ICML 2019, which the FedReb thesis uses. For each class the clients' parts come from Dir(alpha). A client
that has its equal share of all samples gets nothing of the following classes. The paper does not say how parts of a
class become whole numbers: by largest remainder here, or by cumulative floor as in PFLlib (Zhang et al., 2023).

``natural`` keeps each person's samples together. ``per-class`` and ``labels-per-client`` are in ``class_partition.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.class_partition import share_labels, share_per_class
from fedquilt_common.datasets.dirichlet import draw_class_weights, draw_client_weights
from fedquilt_common.errors import ExperimentError

ClassCounts = NDArray[np.int64]
CountRounding = Literal["largest-remainder", "cumulative-floor"]
_TRIES = 100
_USUAL_LEAST = 10


@dataclass(frozen=True)
class Scheme:
    """How samples are divided: the fields of the experiment's ``data.partition``, and the samples' persons.

    Attributes:
        name: of the scheme, such as dirichlet.
        alpha: parameter of the Dirichlet distributions, above 0.
        min_samples: least number of samples of a client; None: the Dirichlet schemes guarantee 10, or n // clients if
            there are too few.
        per_class: samples of each class that a client has; for ``per-class``.
        classes: least and greatest number of classes of a client; None: all. For ``per-class``.
        labels: number of classes of a client; for ``labels-per-client``.
        overlap: clients draw their samples independently; for ``per-class``.
        rounding: how parts of a class become whole numbers of samples; for ``dirichlet-per-class``.
        subjects: the person of each sample, shape (n,); None if the data set does not have them.
    """

    name: str
    alpha: float | None = None
    min_samples: int | None = None
    per_class: int | None = None
    classes: tuple[int, int] | None = None
    labels: int | None = None
    overlap: bool = False
    rounding: CountRounding = "largest-remainder"
    subjects: NDArray[np.integer] | None = None


def partition_by(scheme: Scheme, labels: NDArray[np.integer], clients: int, seed: int) -> list[NDArray[np.int64]]:
    """Divide samples among clients by a scheme; the same arguments give the same result on every machine.

    Args:
        scheme: name and parameters.
        labels: of the samples, shape (n,).
        clients: how many.
        seed: of the random draws.

    Returns:
        For each client the sorted indices of its samples, int64 of shape (samples,); no sample has two clients, unless
        the scheme has ``overlap``.

    Raises:
        ExperimentError: the scheme does not suit the data set or the number of clients, or a client has too few
            samples.
    """
    _check(labels, clients, 1 if scheme.overlap else scheme.min_samples or 1)
    shares = _partition_by(scheme, labels, clients, seed)
    check_smallest(shares, scheme.min_samples)
    return shares


def _partition_by(scheme: Scheme, labels: NDArray[np.integer], clients: int, seed: int) -> list[NDArray[np.int64]]:
    if scheme.name in ("natural", "subject"):
        return _share_persons(scheme.subjects, clients)
    rng = np.random.Generator(np.random.PCG64(seed))
    if scheme.name == "per-class":
        _check_classes(labels, scheme.name)
        return share_per_class(labels, clients, scheme.per_class or 1, scheme.classes, scheme.overlap, rng)
    if scheme.name == "labels-per-client":
        _check_classes(labels, scheme.name)
        return share_labels(labels, clients, scheme.labels or 1, rng)
    least = scheme.min_samples or min(_USUAL_LEAST, len(labels) // clients)
    return partition(labels, clients, scheme.name, scheme.alpha, least, seed, scheme.rounding)


def check_smallest(shares: Sequence[NDArray[np.int64]], least: int | None) -> None:
    """Check that each client has enough samples.

    Args:
        shares: for each client the indices of its samples, int64 of shape (samples,).
        least: fewest samples of a client; None: any number.

    Raises:
        ExperimentError: a client has fewer.
    """
    sizes = [len(share) for share in shares]
    if least is not None and min(sizes) < least:
        raise ExperimentError(
            f"data.partition.min_samples = {least}: client {int(np.argmin(sizes))} would have {min(sizes)} samples; "
            "lower it, use fewer clients, or choose another scheme"
        )


def partition(
    labels: NDArray[np.integer],
    clients: int,
    scheme: str,
    alpha: float | None,
    min_samples: int,
    seed: int,
    rounding: CountRounding = "largest-remainder",
) -> list[NDArray[np.int64]]:
    """Divide all samples among clients; the same arguments give the same result on every machine.

    Args:
        labels: of the samples, shape (n,).
        clients: how many.
        scheme: uniform, dirichlet or dirichlet-per-class.
        alpha: parameter of the Dirichlet distributions, above 0.
        min_samples: least number of samples of a client.
        seed: of the random draws.
        rounding: how parts of a class become whole numbers of samples; for dirichlet-per-class.

    Returns:
        For each client the sorted indices of its samples, int64 of shape (samples,); each sample has one client.

    Raises:
        ExperimentError: an argument is out of range, or the data set has no classes or too few samples.
    """
    _check(labels, clients, min_samples)
    rng = np.random.Generator(np.random.PCG64(seed))
    if scheme == "uniform":
        return [np.sort(share) for share in np.array_split(rng.permutation(len(labels)), clients)]
    if scheme not in _DIRICHLET:
        raise ExperimentError(f"data.partition.scheme = {scheme}: choose 'uniform' or one of {', '.join(_DIRICHLET)}")
    if alpha is None or not 0 < alpha < float("inf"):
        raise ExperimentError(f"data.partition.alpha = {alpha}: must be a number above 0")
    _check_classes(labels, scheme)

    def draw(per_class: ClassCounts) -> ClassCounts:
        if scheme == "dirichlet":
            return _share_out(per_class, draw_client_weights(clients, len(per_class), alpha, rng))
        return _share_by_class(per_class, clients, alpha, rng, _ROUNDINGS[rounding])

    return _share_dirichlet(labels, clients, min_samples, rng, draw)


def _check(labels: NDArray[np.integer], clients: int, min_samples: int) -> None:
    if clients < 1 or min_samples < 1:
        raise ExperimentError(
            f"data.clients = {clients}, data.partition.min_samples = {min_samples}: both must be 1 or more"
        )
    if not len(labels):
        raise ExperimentError(
            f"data.set: the data set has no samples for its {clients} clients; choose another one, or data.delivery = "
            "own if boards have the samples"
        )
    if clients > len(labels):
        raise ExperimentError(
            f"data.clients = {clients}: the data set has {len(labels)} samples, which is too few; use fewer clients"
        )
    if clients * min_samples > len(labels):
        raise ExperimentError(
            f"data.partition.min_samples = {min_samples}: {clients} clients (data.clients) need "
            f"{clients * min_samples} samples, but there are {len(labels)}; lower it, or use fewer clients"
        )


def _check_classes(labels: NDArray[np.integer], scheme: str) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        key = "bins" if labels.size == len(labels) else "clusters"  # bins divide a single target
        raise ExperimentError(
            f"data.partition.scheme = {scheme}: the data set has no class for each sample; set data.partition.{key}, "
            "such as 10, or choose 'uniform'"
        )


def _share_persons(subjects: NDArray[np.integer] | None, clients: int) -> list[NDArray[np.int64]]:
    """Deal persons to the clients in their order, each with all of its samples."""
    where = "data.partition.scheme = natural"
    if subjects is None:
        raise ExperimentError(f"{where}: the data set does not list its samples' persons; choose another scheme")
    persons = np.unique(subjects)
    if len(persons) < clients:
        raise ExperimentError(
            f"{where}: {clients} clients (data.clients) need as many persons; there are {len(persons)}, "
            "so use fewer clients"
        )
    owner = np.searchsorted(persons, subjects) % clients
    ends = np.cumsum(np.bincount(owner, minlength=clients))[:-1]
    return np.split(np.argsort(owner, kind="stable"), ends)


def _share_dirichlet(
    labels: NDArray[np.integer],
    clients: int,
    least: int,
    rng: np.random.Generator,
    draw: Callable[[ClassCounts], ClassCounts],
) -> list[NDArray[np.int64]]:
    _, labels, per_class = np.unique(labels, return_inverse=True, return_counts=True)
    counts = _draw_counts(least, lambda: draw(per_class))
    _top_up(counts, least)
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == kind))
        for share, piece in zip(shares, np.split(members, np.cumsum(column)[:-1]), strict=True):
            share.append(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def _draw_counts(least: int, draw: Callable[[], ClassCounts]) -> ClassCounts:
    """Draw sample counts of shape (clients, classes), up to 100 times until each client has ``least``.

    Returns the first draw that succeeds, else the one whose smallest client is largest.
    """
    best, best_least = np.zeros((0, 0), dtype=np.int64), -1
    for _ in range(_TRIES):
        counts = draw()
        smallest = int(counts.sum(axis=1).min())
        if smallest > best_least:
            best, best_least = counts, smallest
        if best_least >= least:
            break
    return best


def _share_by_class(
    per_class: ClassCounts,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    share_out: Callable[[ClassCounts, NDArray[np.float64]], ClassCounts],
) -> ClassCounts:
    counts = np.zeros((clients, len(per_class)), dtype=np.int64)
    fair = int(per_class.sum()) / clients
    for kind, number in enumerate(per_class):
        weights = draw_class_weights(counts.sum(axis=1) < fair, alpha, rng)
        counts[:, kind] = share_out(np.array([number]), weights[:, None])[:, 0]
    return counts


def _share_out(per_class: ClassCounts, weights: NDArray[np.float64]) -> ClassCounts:
    """Divide each class in proportion to ``weights``, shape (clients, classes), rounded by largest remainder."""
    quota = _parts(weights) * per_class
    counts: ClassCounts = np.floor(quota).astype(np.int64)
    rank = np.argsort(np.argsort(counts - quota, axis=0, kind="stable"), axis=0, kind="stable")
    counts += rank < per_class - counts.sum(axis=0)
    return counts


def _share_out_by_floor(per_class: ClassCounts, weights: NDArray[np.float64]) -> ClassCounts:
    """Divide each class at the floors of the cumulative parts, as PFLlib does; the last client gets what is left."""
    bounds: ClassCounts = np.floor(np.cumsum(_parts(weights), axis=0) * per_class).astype(np.int64)
    bounds[-1] = per_class
    return np.diff(np.minimum(bounds, per_class), axis=0, prepend=0)


def _parts(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each client's part of each class, shape (clients, classes)."""
    parts: NDArray[np.float64] = weights / weights.sum(axis=0)
    return parts


def _top_up(counts: ClassCounts, least: int) -> None:
    """Move samples from the largest client's largest class to each client that has fewer than ``least``, in place."""
    sizes = counts.sum(axis=1)
    largest = [(-int(size), client) for client, size in enumerate(sizes)]  # ties go to the first client
    heapq.heapify(largest)
    for poor in np.flatnonzero(sizes < least).tolist():
        while sizes[poor] < least:
            rich = _pop_largest(largest, sizes)
            kind = int(counts[rich].argmax())
            moved = min(int(least - sizes[poor]), int(sizes[rich]) - least, int(counts[rich, kind]))
            moved = max(1, moved // 2)  # half of them, so that one client does not give them all
            counts[rich, kind] -= moved
            counts[poor, kind] += moved
            sizes[rich] -= moved
            sizes[poor] += moved
            heapq.heappush(largest, (-int(sizes[rich]), rich))
            heapq.heappush(largest, (-int(sizes[poor]), poor))


def _pop_largest(largest: list[tuple[int, int]], sizes: ClassCounts) -> int:
    """Remove and return the client with most samples from a heap that has outdated entries too."""
    while True:
        size, client = heapq.heappop(largest)
        if -size == sizes[client]:
            return client


_DIRICHLET: Final = ("dirichlet", "dirichlet-per-class")
_ROUNDINGS: Final[Mapping[CountRounding, Callable[[ClassCounts, NDArray[np.float64]], ClassCounts]]] = {
    "largest-remainder": _share_out, "cumulative-floor": _share_out_by_floor,
}  # fmt: skip
