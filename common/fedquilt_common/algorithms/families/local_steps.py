"""Local steps of SGD, shared by SCAFFOLD, FedNova and q-FedAvg: what they add up to, and which optimisers have them."""

from __future__ import annotations

from typing import Final

from fedquilt_common.algorithm_api import TrainingSettings

GRADIENTS_ADD_UP: Final = "it divides a client's update by its gradients' number, which only `sgd` adds up"


def gradient_count(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return how many gradients a client's steps add up to: ``||a||_1`` of FedNova.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
    section 4. A gradient's coefficient in ``a`` is how far it alone has moved the client by the last step, in learning
    rates; with momentum and a proximal term it can be negative. Without a proximal term the norm equals
    ``[t - rho (1 - rho^t) / (1 - rho)] / (1 - rho)`` for t steps with the momentum rho, and t without momentum. With a
    proximal term and no momentum it equals ``[1 - (1 - pull)^t] / pull``.

    Args:
        steps: number of steps, 1 or more.
        momentum: of SGD, in [0, 1).
        pull: learning rate times weight of the proximal term, in [0, 1).
    """
    count, moved, velocity = 1.0, 1.0, 1.0  # the last gradient moves one step
    for _ in range(steps - 1):
        velocity = momentum * velocity - pull * moved
        moved += velocity
        count += abs(moved)
    return count


def sgd_problem(training: TrainingSettings, why: str) -> str:
    """Return why a client's updates are not the sum of the gradients of this round; empty if they are.

    Args:
        training: of the client.
        why: why the algorithm needs SGD.
    """
    if training.optimiser != "sgd":
        return f"optimiser = {training.optimiser}: {why}; choose sgd"
    if training.keep_optimiser and training.momentum:
        return (
            "keep_optimiser = true: the algorithm would take the momentum of earlier rounds for gradients of this one; "
            "remove the key, or training.momentum"
        )
    return ""
