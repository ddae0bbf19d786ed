"""What a run guarantees to the samples of an attacked model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import ClientId
from fedquilt_server.privacy_audit.bound import PrivacyBound
from fedquilt_server.privacy_audit.finished_run import FinishedRun


def find_guarantee(run: FinishedRun, clients: Collection[ClientId], *, own: bool) -> PrivacyBound | None:
    """Return the bound for the least protected sample of some clients; None if nothing bounds an attack.

    Several clients can have the same sample (``data.partition.overlap``). What each of them spends on it adds up.

    Args:
        run: the run.
        clients: the clients that trained the model on their samples.
        own: whether the model is a client's own. The coordinator's noise is in the global model only.
    """
    shares = {client: run.bench.shares[client].train for client in sorted(run.clients)}
    members = np.unique(np.concatenate([shares[client] for client in clients]))
    held = {client: np.isin(members, share) for client, share in shares.items()}
    central = None if own else _find_central(run, held)
    bounds = [bound for bound in (_find_local(run, held), central) if bound is not None]
    return min(bounds, key=lambda bound: bound.auc, default=None)


def _find_local(run: FinishedRun, held: Mapping[ClientId, NDArray[np.bool_]]) -> PrivacyBound | None:
    """Return what the clients' own noise guarantees; the epsilons of the clients that have a sample add up."""
    spent = {row.client: (row.epsilon, row.delta or 0.0) for row in run.result.privacy if row.epsilon is not None}
    holders = [client for client, has in held.items() if has.any()]
    if not set(holders) <= spent.keys():
        return None
    epsilons, deltas = (sum(held[client] * spent[client][part] for client in holders) for part in (0, 1))
    return PrivacyBound(float(np.max(epsilons)), float(np.max(deltas)))


def _find_central(run: FinishedRun, held: Mapping[ClientId, NDArray[np.bool_]]) -> PrivacyBound | None:
    """Return what the coordinator's noise guarantees to the clients that have a sample, as a group."""
    central = run.result.rounds[-1].central_privacy if run.result.rounds else None
    if central is None:
        return None
    return PrivacyBound(central.epsilon, central.delta).of_group(int(np.max(sum(held.values()))))
