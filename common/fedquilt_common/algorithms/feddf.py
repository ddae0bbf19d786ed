"""FedDF: FedAvg of each kind of model; then each learns the mean of all clients' logits on the public samples.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, algorithms 1 and 3.
Kullback-Leibler divergence without temperature, Adam with a cosine, and early stopping, as in the code published with
the paper. There, early stopping uses labelled samples; here it uses the divergence on a fifth of the public ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedquilt_common.aggregation.soft_labels import Logits, check_can_distil, client_weights
from fedquilt_common.algorithm_api import Reply, Round, ServerContext, State
from fedquilt_common.algorithms.families.prototypes import (
    Prototypes,
    average_prototypes,
    evaluate_prototypes,
    initial_models,
    pack_models,
    predict_each,
    unpack_models,
)
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.losses import divergence
from fedquilt_common.types import Arrays, ClientId, Examples

VALIDATION = 5
"""One public sample in this many is not trained on; early stopping uses it."""


@dataclass(frozen=True)
class FedDF(Prototypes):
    """Ensemble distillation; ``kd_epochs`` 0 leaves the means as they are.

    The state's arrays are the first prototype; ``extra`` has the others.

    Attributes:
        patience: epochs without a better divergence after which a student stops, 1 or more.
        weighting: the teachers weigh equally, or by each client's accuracy on its training samples; its clients keep
            none for testing.
    """

    patience: int = 3
    weighting: Literal["uniform", "accuracy"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1:
            raise ValueError("patience must be 1 or more")

    @property
    def by_accuracy(self) -> bool:
        return self.weighting == "accuracy"

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_distil(ctx)
        return _state(initial_models(model, ctx))

    def round(self, state: State, ctx: ServerContext) -> Round:
        models = _models(state, ctx)
        replies = yield self.make_tasks(models, ctx)
        means = average_prototypes(models, replies, ctx)
        return _state(self.train_students(means, self.mean_logits(replies, ctx), ctx) if self.kd_epochs else means)

    def train_students(self, means: Sequence[Arrays], labels: Logits, ctx: ServerContext) -> list[Arrays]:
        """Train each prototype on the public samples.

        Args:
            means: each prototype's mean, in its shapes.
            labels: of the public samples, float32 of shape (n, classes).
            ctx: the server context.
        """
        order = np.random.Generator(np.random.PCG64(derive_seed(ctx.seed, "watched"))).permutation(len(labels))
        data, count = Examples(ctx.public, labels), len(labels) // VALIDATION
        training, validation = np.sort(order[count:]), np.sort(order[:count])
        watch = data.take(validation) if count else None
        settings = {"anneal": True, "watch": watch, "patience": self.patience}
        return [
            self.train_student(learner, arrays, data.take(training), divergence, ctx, number, **settings)
            for number, (learner, arrays) in enumerate(zip(ctx.prototypes, means, strict=True))
        ]

    def mean_logits(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> Logits:
        """Return the weighted mean of the clients' logits on the public samples, float32 of shape (n, classes)."""
        weights = client_weights(replies, self.by_accuracy)
        total = np.zeros((len(ctx.public), ctx.classes))
        for logits, weight in zip(predict_each(replies, ctx), weights, strict=True):
            total += logits.astype(np.float64) * weight
        labels: Logits = (total / weights.sum()).astype(np.float32)
        return labels

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return evaluate_prototypes(_models(state, ctx), ctx)


def _state(models: list[Arrays]) -> State:
    return State(models[0], pack_models(models[1:]))


def _models(state: State, ctx: ServerContext) -> list[Arrays]:
    return [state.arrays, *unpack_models(state.extra, len(ctx.prototypes) - 1)]
