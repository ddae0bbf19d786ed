"""Fed-ET: clients train small models of several kinds; a larger one on the coordinator learns their consensus.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning", IJCAI 2022. The
large model's head starts as the mean of the clients' heads; after training, the small models receive it. The diversity
regularisation adds the labels of clients that predict another class than the consensus.
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
    initial_models,
    pack_models,
    predict_each,
    unpack_models,
)
from fedquilt_common.errors import ExperimentError
from fedquilt_common.submodels.heads import check_head_layers
from fedquilt_common.types import Arrays, ClientId, Examples


@dataclass(frozen=True)
class FedET(Prototypes):
    """Ensemble transfer into the experiment's model; the clients' models are the variants of the fleet.

    Attributes:
        diversity: weight of the diversity regularisation, lambda in the paper, 0 or more.
        head_layers: number of linear layers at the end that all models have in the same shapes.
        weighting: clients weigh by the variance of their logits, sample by sample; equally; or by their accuracy on
            their training samples. Its clients keep none for testing.
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
        check_can_distil(ctx)
        models = initial_models(model, ctx)
        for small, learner in zip(models, ctx.prototypes, strict=True):
            self._check_heads(model, small, ctx.learner, learner)
        return State(model, pack_models(models))

    def round(self, state: State, ctx: ServerContext) -> Round:
        models = unpack_models(state.extra, len(ctx.prototypes))
        replies = yield self.make_tasks(models, ctx)
        large = {**state.arrays, **self._mean_head(replies, ctx)}
        data = Examples(ctx.public, self.targets(replies, ctx))
        large = dict(self.train_student(ctx.learner, large, data, self.loss, ctx, 0))
        head = list(self._head(large, ctx.learner).values())
        means = average_prototypes(models, replies, ctx)
        return State(large, pack_models([self._with_head(small, head, ctx, kind) for kind, small in enumerate(means)]))

    def targets(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> NDArray[np.float32]:
        """Return what the large model learns of each public sample.

        Args:
            replies: each with a trained model of its client's prototype.
            ctx: the server context.

        Returns:
            Float32 of shape (n, 2 * classes): the class of the consensus, one-hot; then the probabilities of the
            clients that predict another class, all 0 where there are none.
        """
        logits = np.stack(list(predict_each(replies, ctx)))
        label = weighted_sum(logits, self._weights(logits, replies)).argmax(axis=1)
        dissenting, exists = dissenting_labels(logits, label)
        consensus = np.eye(ctx.classes, dtype=np.float32)[label]
        return np.concatenate([consensus, softmax(dissenting) * exists[:, None]], axis=1, dtype=np.float32)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return cross entropy with the consensus, plus ``diversity`` times the divergence from the dissenting labels.

        Args:
            outputs: the large model's logits, shape (n, classes).
            targets: as ``targets`` returns them, shape (n, 2 * classes).
        """
        from torch.nn import functional

        consensus, dissenting = targets.split(targets.shape[1] // 2, dim=1)
        total = functional.cross_entropy(outputs, consensus)
        if not self.diversity:
            return total
        return total + self.diversity * functional.kl_div(
            functional.log_softmax(outputs, dim=1), dissenting, reduction="batchmean"
        )

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        models = unpack_models(state.extra, len(ctx.prototypes))
        pairs = zip(models, ctx.prototypes, strict=True)
        accuracies = [ctx.evaluate(arrays, learner=learner)["accuracy"] for arrays, learner in pairs]
        small = {f"accuracy_{number}": value for number, value in enumerate(accuracies)}
        return {**ctx.evaluate(state.arrays), **small}

    def _weights(self, logits: NDArray[Any], replies: Mapping[ClientId, Reply]) -> NDArray[np.float64]:
        """Return the weight of each client for each sample, shape (clients, n)."""
        if self.weighting == "variance":
            return confidence_weights(logits)
        return np.repeat(client_weights(replies, self.by_accuracy)[:, None], logits.shape[1], axis=1)

    def _head(self, arrays: Arrays, learner: Learner) -> dict[str, NDArray[Any]]:
        """Return the arrays of a model's head, in the order of its layers."""
        return {name: arrays[name] for name in learner.head(self.head_layers)}

    def _mean_head(self, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> dict[str, NDArray[Any]]:
        """Return the unweighted mean of all clients' heads, under the large model's names."""
        names = ctx.learner.head(self.head_layers)
        heads = {}
        for client, reply in replies.items():
            head = self._head(reply.arrays, ctx.prototypes[ctx.prototype_of(client)])
            heads[client] = Reply(dict(zip(names, head.values(), strict=True)))
        return mean(heads)

    def _with_head(self, arrays: Arrays, head: list[NDArray[Any]], ctx: ServerContext, kind: int) -> Arrays:
        names = ctx.prototypes[kind].head(self.head_layers)
        return {**arrays, **dict(zip(names, head, strict=True))}

    def _check_heads(self, large: Arrays, small: Arrays, server: Learner, client: Learner) -> None:
        """Raise ExperimentError unless both heads have the same shapes."""
        shapes = [
            [tuple(x.shape) for x in self._head(arrays, learner).values()]
            for arrays, learner in ((large, server), (small, client))
        ]
        if shapes[0] != shapes[1]:
            raise ExperimentError(
                f"algorithm.head_layers = {self.head_layers}: the coordinator's head has shapes {shapes[0]}, a "
                f"client's {shapes[1]}; give all models a last layer of the same inputs"
            )
