"""Local steps of SGD, shared by SCAFFOLD and FedNova: what they add up to, and which optimisers have them."""

from __future__ import annotations

from fedquilt_common.algorithm_api import Learner
from fedquilt_common.errors import ExperimentError


def gradient_count(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return how many gradients a client's steps add up to: ``||a||_1`` of FedNova.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
    section 4. It is the distance that the steps cover, in learning rates, if every gradient is 1. Without a proximal
    term it equals ``[t - rho (1 - rho^t) / (1 - rho)] / (1 - rho)`` for t steps with the momentum rho, and t without
    momentum. With a proximal term and no momentum it equals ``[1 - (1 - pull)^t] / pull``.

    Args:
        steps: number of steps, 1 or more.
        momentum: of SGD, in [0, 1).
        pull: learning rate times weight of the proximal term.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * moved
        moved += velocity
    return moved


def check_sgd(name: str, learner: Learner) -> None:
    """Check that a learner takes steps of SGD, whose gradients add up.

    Args:
        name: of the algorithm.
        learner: trains the model.

    Raises:
        ExperimentError: it has another optimiser, or momentum that lasts from round to round.
    """
    if learner.optimiser != "sgd":
        raise ExperimentError(
            f"training.optimiser = {learner.optimiser}: {name} divides a client's update by its gradients' number, "
            "which only `sgd` adds up; choose sgd"
        )
    if learner.keeps_optimiser and learner.momentum:
        raise ExperimentError(
            f"training.keep_optimiser = true: {name} would take the momentum of earlier rounds for gradients of this "
            "one; remove the key, or training.momentum"
        )
