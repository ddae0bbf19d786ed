"""FedDF: after FedAvg of each kind of model, each learns from the mean of all clients' logits on public samples.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, algorithms 1 and 3.
Kullback and Leibler's divergence without temperature, Adam with a cosine, and an early stop as in the code published
with it; there the stop looks at labelled samples, here at the divergence on a fifth of the public ones.
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
    client_logits,
    initial_models,
    pack_models,
    scores_of,
    unpack_models,
)
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.losses import divergence
from fedquilt_common.types import Arrays, ClientId, Examples

WATCHED = 5
"""One public sample in so many is not learned from, but decides when to stop."""


@dataclass(frozen=True)
class FedDF(Prototypes):
    """``kd_epochs`` 0 leaves the means as they are. ``patience``: epochs without a better divergence after which a
    student stops. ``weighting`` of the teachers: all alike, or by the accuracy that each client has on the samples that
    it keeps for testing, or else trains on.

    The state's arrays are the models of the first kind of clients; those of other kinds are kept beside them.
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
        check_can_distil(ctx, self)
        return _state(initial_models(model, ctx))

    def round(self, state: State, ctx: ServerContext) -> Round:
        models = _models(state, ctx)
        replies = yield self.ask(models, ctx)
        means = average_prototypes(models, replies, ctx)
        return _state(self.students(means, self.ensemble(replies, ctx), ctx) if self.kd_epochs else means)

    def students(self, means: Sequence[Arrays], labels: Logits, ctx: ServerContext) -> list[Arrays]:
        """Each kind's mean after it has learned the labels, shape (n, classes), of the public samples."""
        order = np.random.Generator(np.random.PCG64(derive_seed(ctx.seed, "watched"))).permutation(len(labels))
        data, watched = Examples(ctx.public, labels), len(labels) // WATCHED
        seen, rest = np.sort(order[watched:]), np.sort(order[:watched])
        how = {"anneal": True, "watch": data.take(rest) if watched else None, "patience": self.patience}
        return [
            self.student(learner, arrays, data.take(seen), divergence, ctx, number, **how)
            for number, (learner, arrays) in enumerate(zip(ctx.prototypes, means, strict=True))
        ]

    def ensemble(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> Logits:
        """The mean of the clients' logits, shape (n, classes)."""
        weights = client_weights(replies, self.by_accuracy)
        labels: Logits = np.average(client_logits(replies, ctx), axis=0, weights=weights).astype(np.float32)
        return labels

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return scores_of(_models(state, ctx), ctx)


def _state(models: list[Arrays]) -> State:
    return State(models[0], pack_models(models[1:]))


def _models(state: State, ctx: ServerContext) -> list[Arrays]:
    return [state.arrays, *unpack_models(state.extra, len(ctx.prototypes) - 1)]
