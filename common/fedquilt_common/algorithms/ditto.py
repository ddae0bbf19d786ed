"""Ditto: beside FedAvg's global model, each client trains a personal model that stays near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, algorithm 1: client k
minimises F_k(v) + lambda / 2 * ||v - w||^2, w being the global model that it received. The global model is FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.penalties import proximal_penalty
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg with a personal model in each client's private memory; before its first training it is the global model.

    Attributes:
        lambda_: weight of the distance to the global model, above 0; in the experiment file: ``lambda``.
        personal_epochs: epochs of the personal model in a round; None: ``training.epochs``.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.25, privacy="", pooled="", private_memory=True, sends_memory=False, public=False
    )

    lambda_: float
    personal_epochs: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lambda_ < float("inf"):
            raise ValueError("lambda must be a positive number; with lambda = 0 the clients' models are only local")
        if self.personal_epochs is not None and self.personal_epochs < 1:
            raise ValueError("personal_epochs must be 1 or more; leave it out to use training.epochs")

    def private_passes(self, epochs: int, rounds: int) -> int:
        """Return the passes over a client's samples: those of the global model and of the personal one."""
        return rounds * (epochs + (self.personal_epochs or epochs))

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        personal = ctx.learner.train(
            ctx.memory or task.arrays,
            ctx.data,
            seed=derive_seed(ctx.seed, "personal"),
            penalty=proximal_penalty(task.arrays, self.lambda_),
            epochs=self.personal_epochs,
        )
        ctx.memory.update(personal.arrays)
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed)
        metrics = {
            "loss": trained.loss, "personal_loss": personal.loss, "train_seconds": personal.seconds + trained.seconds
        }  # fmt: skip
        return Reply(trained.arrays, len(ctx.data), metrics)

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global model, ``arrays`` in the model's shapes, and the personal one."""
        (shared,) = ctx.learner.count(arrays, ctx.test)
        (personal,) = ctx.learner.count(ctx.memory, ctx.test) if ctx.memory else (shared,)
        return evaluation_reply(len(ctx.test), shared, personal)
