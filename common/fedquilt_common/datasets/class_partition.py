"""Partitions that decide which classes a client has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError


def share_per_class(
    labels: NDArray[np.integer],
    clients: int,
    each: int,
    classes: tuple[int, int] | None,
    overlap: bool,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Give each client equally many samples of each of its classes (FedAKD thesis, section 3.7.3).

    Args:
        labels: of the samples, shape (n,).
        clients: how many.
        each: samples of each class that a client has.
        classes: least and greatest number of classes of a client; None: all.
        overlap: clients draw their samples independently, so that a sample can have several clients.
        rng: of the random draws.

    Returns:
        For each client the sorted indices of its samples.

    Raises:
        ExperimentError: there are too few classes, or too few samples of a class.
    """
    kinds = np.unique(labels)
    least, most = classes or (len(kinds), len(kinds))
    if most > len(kinds):
        raise ExperimentError(
            f"data.partition.classes = [{least}, {most}]: the data set has {len(kinds)} classes; choose a smaller range"
        )
    has = np.zeros((clients, len(kinds)), dtype=bool)
    for client in range(clients):
        has[client, rng.permutation(len(kinds))[: rng.integers(least, most + 1)]] = True
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, owners in zip(kinds, has.T, strict=True):
        members = rng.permutation(np.flatnonzero(labels == kind))
        needed = each if overlap else int(owners.sum()) * each
        if needed > len(members):
            who = "each client needs" if overlap else "all clients together need"
            raise ExperimentError(
                f"data.partition.per_class = {each}: {who} {needed} samples of class {kind}, but there are "
                f"{len(members)}; choose a smaller number"
            )
        for place, client in enumerate(np.flatnonzero(owners).tolist()):
            drawn = rng.permutation(members) if overlap else members[place * each :]
            shares[client].append(drawn[:each])
    return [np.sort(np.concatenate(share)) for share in shares]


def share_labels(
    labels: NDArray[np.integer], clients: int, each: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Give each client ``each`` classes, and divide each class equally among its clients.

    A client draws from the classes that the fewest clients have so far, so that each class has about the same number of
    clients, and clients have disjoint classes as long as there are enough. The FedReb thesis calls this "hold c
    classes" (figure 3.1).

    Args:
        labels: of the samples, shape (n,).
        clients: how many.
        each: number of classes of a client.
        rng: of the random draws.

    Returns:
        For each client the sorted indices of its samples; each sample has one client.

    Raises:
        ExperimentError: a class would have no client, or fewer samples than clients.
    """
    kinds, per_class = np.unique(labels, return_counts=True)
    if each > len(kinds) or clients * each < len(kinds):
        least = -(-len(kinds) // clients)
        raise ExperimentError(
            f"data.partition.labels = {each}: the data set has {len(kinds)} classes, and each class needs one of the "
            f"{clients} clients; choose {least} to {len(kinds)}"
        )
    has = np.zeros((clients, len(kinds)), dtype=bool)
    holders = np.zeros(len(kinds), dtype=np.int64)
    for client in range(clients):
        drawn = np.lexsort((rng.permutation(len(kinds)), holders))[:each]
        has[client, drawn] = True
        holders[drawn] += 1
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for kind, owners, count in zip(kinds, has.T, per_class, strict=True):
        if count < owners.sum():
            raise ExperimentError(
                f"data.partition.labels = {each}: {owners.sum()} clients share class {kind}, which has {count} "
                "samples; choose a smaller number, or use fewer clients"
            )
        members = rng.permutation(np.flatnonzero(labels == kind))
        for client, piece in zip(np.flatnonzero(owners).tolist(), np.array_split(members, owners.sum()), strict=True):
            shares[client].append(piece)
    return [np.sort(np.concatenate(share)) for share in shares]
