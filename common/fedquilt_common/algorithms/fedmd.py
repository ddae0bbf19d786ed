"""FedMD: clients with models of their own learn from the mean of what all of them think of public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop, algorithm 1. Labels
are logits, all clients weigh alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedquilt_common.algorithm_api import Loss
from fedquilt_common.algorithms.families.own_model import OwnModel
from fedquilt_common.training.losses import DISTILLATION


@dataclass(frozen=True)
class FedMD(OwnModel):
    """``kd_loss``: mean squared or absolute error, or Kullback and Leibler's divergence."""

    kd_loss: Literal["mse", "mae", "kl"] = "mse"

    @property
    def loss(self) -> Loss:
        return DISTILLATION[self.kd_loss]
