"""Fed-ET: clients train small models of several kinds, the coordinator a larger one, from their weighted consensus.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning", IJCAI 2022. The
large model's head begins as the mean of the clients' heads, and is what the small models get back; where clients who
see another class than the consensus are heard too, that is the diversity regularisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.soft_labels import (
    check_can_distil,
    client_weights,
    confidence_weights,
    dissenting_labels,
    softmax,
    weighted_sum,
)
from fedquilt_common.algorithm_api import Learner, Reply, Round, ServerContext, State
from fedquilt_common.algorithms.families.prototypes import (
    Prototypes,
    average_prototypes,
    client_logits,
    initial_models,
    pack_models,
    unpack_models,
)
from fedquilt_common.errors import ExperimentError
from fedquilt_common.submodels.heads import check_head_layers
from fedquilt_common.types import Arrays, ClientId, Examples


@dataclass(frozen=True)
class FedET(Prototypes):
    """``diversity``: weight of the regularisation, the paper's lambda. ``head_layers``: the last linear layers, which
    all models have of the same shape. ``weighting`` of the clients: for each sample by the variance of their logits, or
    all alike, or by the accuracy that each has on the samples that it keeps for testing, or else trains on.

    The experiment's model is the coordinator's; what clients have are the variants of the fleet.
    """

    diversity: float = 0.05
    head_layers: int = 1
    weighting: Literal["variance", "uniform", "accuracy"] = "variance"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head_layers(self.head_layers)
        if self.kd_epochs < 1:
            raise ValueError("kd_epochs must be 1 or more, or the coordinator's model learns nothing")
        if not 0 <= self.diversity < float("inf"):
            raise ValueError("diversity must be a number of 0 or more")

    @property
    def by_accuracy(self) -> bool:
        return self.weighting == "accuracy"

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_distil(ctx, self)
        models = initial_models(model, ctx)
        for small, learner in zip(models, ctx.prototypes, strict=True):
            self._check(model, small, ctx.learner, learner)
        return State(model, pack_models(models))

    def round(self, state: State, ctx: ServerContext) -> Round:
        models = unpack_models(state.extra, len(ctx.prototypes))
        replies = yield self.ask(models, ctx)
        large = {**state.arrays, **self._mean_head(replies, ctx)}
        data = Examples(ctx.public, self.targets(replies, ctx))
        large = dict(self.student(ctx.learner, large, data, self.loss, ctx, 0))
        head = list(self._head(large, ctx.learner).values())
        small = [
            self._with_head(one, head, ctx, kind) for kind, one in enumerate(average_prototypes(models, replies, ctx))
        ]
        return State(large, pack_models(small))

    def targets(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> NDArray[np.float32]:
        """For each public sample, shape (n, 2 * classes): the class of the consensus, one-hot, and the probabilities of
        those who see another one, all 0 where nobody does."""
        logits = client_logits(replies, ctx)
        label = weighted_sum(logits, self._weights(logits, replies)).argmax(axis=1)
        others, heard = dissenting_labels(logits, label)
        hard = np.eye(ctx.classes, dtype=np.float32)[label]
        return np.concatenate([hard, softmax(others) * heard[:, None]], axis=1, dtype=np.float32)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy with the consensus, and ``diversity`` times the divergence from the others."""
        from torch.nn import functional

        hard, others = targets.split(targets.shape[1] // 2, dim=1)
        total = functional.cross_entropy(outputs, hard)
        if not self.diversity:
            return total
        return total + self.diversity * functional.kl_div(
            functional.log_softmax(outputs, dim=1), others, reduction="batchmean"
        )

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        small = unpack_models(state.extra, len(ctx.prototypes))
        each = [
            ctx.evaluate(arrays, learner=one)["accuracy"] for arrays, one in zip(small, ctx.prototypes, strict=True)
        ]
        return {**ctx.evaluate(state.arrays), **{f"accuracy_{number}": value for number, value in enumerate(each)}}

    def _weights(self, logits: NDArray[Any], replies: Mapping[ClientId, Reply]) -> NDArray[np.float64]:
        if self.weighting == "variance":
            return confidence_weights(logits)
        return np.repeat(client_weights(replies, self.by_accuracy)[:, None], logits.shape[1], axis=1)

    def _head(self, arrays: Arrays, learner: Learner) -> dict[str, NDArray[Any]]:
        """The arrays of a model's head, in the order of its layers."""
        return {name: arrays[name] for name in learner.head(self.head_layers)}

    def _mean_head(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> dict[str, NDArray[Any]]:
        """The mean of all clients' heads under the large model's names, all alike."""
        names = ctx.learner.head(self.head_layers)
        heads = {}
        for client, reply in replies.items():
            head = self._head(reply.arrays, ctx.prototypes[ctx.prototype_of(client)])
            heads[client] = Reply(dict(zip(names, head.values(), strict=True)))
        return mean(heads)

    def _with_head(self, arrays: Arrays, head: list[NDArray[Any]], ctx: ServerContext, kind: int) -> Arrays:
        names = ctx.prototypes[kind].head(self.head_layers)
        return {**arrays, **dict(zip(names, head, strict=True))}

    def _check(self, large: Arrays, small: Arrays, server: Learner, client: Learner) -> None:
        """Raises ExperimentError unless both heads have the same shapes."""
        shapes = [
            [tuple(x.shape) for x in self._head(arrays, learner).values()]
            for arrays, learner in ((large, server), (small, client))
        ]
        if shapes[0] != shapes[1]:
            raise ExperimentError(
                f"algorithm.head_layers = {self.head_layers}: the coordinator's head has shapes {shapes[0]}, a "
                f"client's {shapes[1]}; give all models a last layer of the same inputs"
            )
