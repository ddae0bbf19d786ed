"""MOON: each client's features stay near those of the global model and away from those of its own previous model.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, algorithm 1: a client minimises the loss of its labels
plus mu * -log(exp(sim(z, z_glob) / T) / (exp(sim(z, z_glob) / T) + exp(sim(z, z_prev) / T))), where sim is the cosine
similarity and z the features of a sample. They are the input of the model's last linear layer, without a projection
head. As in the authors' code, z_glob and z_prev are computed without dropout and with stored norm statistics, and the
server averages parameters and buffers as FedAvg does. They are computed once a round; with ``training.augment``, for
each batch, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Reply,
    ServerContext,
    State,
    Task,
)
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.training.losses import BatchFeatures, look_up, model_contrast
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a model-contrastive loss; the previous model is in each client's private memory.

    The previous model of a client that has not trained before is the run's initial one, as in the authors' code. So the
    contrastive loss has no effect in round 1.

    Attributes:
        mu: weight of the contrastive loss, above 0. The default is that of the authors' code; the paper chooses the
            best of 0.1, 1, 5 and 10 for each data set.
        temperature: T, above 0; 0.5 in the paper.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        tasks=frozenset({"classification", "regression", "next-word"}),
        privacy="its loss depends on the features of whole batches",
        pooled="",
        private_memory=True,
        public=False,
    )

    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.mu < float("inf"):
            raise ValueError("mu must be a positive number; with mu = 0 MOON is FedAvg: use `name: fedavg`")
        if not 0 < self.temperature < float("inf"):
            raise ValueError("temperature must be a positive number")

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        ctx.learner.head(1)  # refuses a model without features before the run starts
        return State(model)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        previous = ctx.memory or ctx.first_model()
        near, far = (_fixed_features(model, ctx) for model in (task.arrays, previous))
        contrast = model_contrast(near, far, self.mu, self.temperature, ctx.learning_task.average)
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, batch_loss=contrast)
        ctx.memory.update(trained.arrays)
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})


def _fixed_features(model: Arrays, ctx: ClientContext) -> BatchFeatures:
    """Return a function that gives a fixed model's features of a batch; they are looked up if images do not change."""
    if not ctx.learner.augments:
        return look_up(ctx.learner.features(model, ctx.data, 1).x)
    extract = ctx.learner.feature_extractor(model, 1)
    return lambda batch: extract(batch.samples)
