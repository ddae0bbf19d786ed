"""Ditto: beside FedAvg each client trains a model of its own, held near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, algorithm 1: client k
minimises F_k(v) + lambda / 2 * ||v - w||^2, w being the global model that it was sent. The global model is FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.evaluation import counted
from fedquilt_common.penalties import near
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays, Reply, Site, Task


@dataclass(frozen=True)
class Ditto(FedAvg):
    """``lambda_`` (in the experiment file: ``lambda``) draws the client's own model to the global one.

    ``personal_epochs``: of the own model; None means ``training.epochs``. A client that has not trained yet has the
    global model.
    """

    holdout: ClassVar[float] = 0.25

    lambda_: float
    personal_epochs: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lambda_ < float("inf"):
            raise ValueError("lambda must be a positive number; with lambda = 0 the clients' models are only local")
        if self.personal_epochs is not None and self.personal_epochs < 1:
            raise ValueError("personal_epochs must be 1 or more; leave it out for as many as training.epochs")

    def train(self, task: Task, site: Site) -> Reply:
        own = site.learner.train(
            site.memory or task.arrays,
            site.data,
            seed=derive_seed(site.seed, "personal"),
            penalty=near(task.arrays, self.lambda_),
            epochs=self.personal_epochs,
        )
        site.memory.update(own.arrays)
        trained = site.learner.train(task.arrays, site.data, seed=site.seed)
        metrics = {"loss": trained.loss, "personal_loss": own.loss, "train_seconds": own.seconds + trained.seconds}
        return Reply(trained.arrays, len(site.data), metrics)

    def test(self, arrays: Arrays, site: Site) -> Reply:
        of_global = site.learner.predict(arrays, site.test)[-1]
        of_own = site.learner.predict(site.memory, site.test)[-1] if site.memory else of_global
        return counted(site.test.y, of_global, of_own)
