"""FedMD: clients with models of their own learn from the mean of all clients' logits on the public set.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop, algorithm 1. Labels
are logits; all clients weigh equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedquilt_common.algorithm_api import Loss
from fedquilt_common.algorithms.families.own_model import OwnModel
from fedquilt_common.training.losses import DISTILLATION


@dataclass(frozen=True)
class FedMD(OwnModel):
    """Own models that exchange logits.

    Attributes:
        kd_loss: mean squared error, mean absolute error, or Kullback-Leibler divergence.
    """

    kd_loss: Literal["mse", "mae", "kl"] = "mse"

    @property
    def loss(self) -> Loss:
        return DISTILLATION[self.kd_loss]
