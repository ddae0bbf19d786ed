"""FedProx: FedAvg with a proximal term that keeps each client's model near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, equation 2: the client minimises
F_k(w) + mu / 2 * ||w - w_t||^2. With mu = 0 it would be FedAvg; use ``name: fedavg`` for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api import Penalty
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.training.penalties import pull_to_start


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term.

    Attributes:
        mu: weight of the proximal term, above 0; 0.001 in the FedReb thesis.
    """

    mu: float

    def __post_init__(self) -> None:
        if not 0 < self.mu < float("inf"):
            raise ValueError("mu must be a positive number; with mu = 0 FedProx is FedAvg: use `name: fedavg`")

    def penalty(self) -> Penalty:
        return pull_to_start(self.mu)
