"""FedProto: clients keep their models and exchange class prototypes, the mean features of the samples of a class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, algorithm 1: a client
minimises the loss of its labels plus lambda times the distance between the features of its samples and the global
prototypes of their classes; then it sends its own prototypes, and the server averages them for each class (equation 6).
As in the authors' code, the distance is the mean squared error, and samples of classes without a global prototype have
none. The features are the input of the model's last linear layer; a client's prototypes are those of its trained model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import EVALUATE, PERSONAL, evaluate_on_clients
from fedquilt_common.algorithm_api import ClientContext, Declaration, Learner, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.families.own_model import evaluate_own_model, load_own_model
from fedquilt_common.errors import ExperimentError
from fedquilt_common.training.losses import class_counts, prototype_distance
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class FedProto:
    """Own models in the clients' private memories; only prototypes travel, so models may differ below the last layer.

    A class that no client of a round has keeps its global prototype. The server reads means only: clients send each
    prototype times its weight, and the weights. By samples, a weight is the class's part of the client's samples, and
    the mean weighs by these samples, so that no number is too large for fp16.

    Attributes:
        lambda_: weight of the distance to the global prototypes, 0 or more; in the experiment file: ``lambda``. The
            default is the paper's for its MNIST and FEMNIST.
        weighting: a prototype weighs by the client's samples of the class (equation 6), or equally in each client that
            has the class, as in the authors' code.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        own_models=True,
        any_models=True,
        tasks=frozenset({"classification"}),
        privacy="its prototypes are means of the samples' features, without noise",
        pooled="",
        private_memory=True,
        public=False,
    )

    lambda_: float = 1.0
    weighting: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        if not 0 <= self.lambda_ < float("inf"):
            raise ValueError("lambda must be 0 or a positive number; with 0 the clients only train for themselves")

    def reply_weight(self, reply: Reply) -> float:
        """Return the client's samples; 1 if its prototypes weigh equally."""
        return reply.weight if self.weighting == "samples" else 1.0

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        widths = {feature_width(learner) for learner in ctx.prototypes}
        if len(widths) > 1:
            raise ExperimentError(
                f"fleet: the last linear layers of the clients' models have {sorted(widths)} inputs, but prototypes "
                "must be alike; choose models that end alike"
            )
        shapes = {"prototypes": (ctx.classes, *widths), "weights": (ctx.classes,)}
        return State({}, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})

    def round(self, state: State, ctx: ServerContext) -> Round:
        replies = yield dict.fromkeys(ctx.select(), Task("train", state.extra))
        return (yield from evaluate_on_clients(self.merge(state, replies), ctx, PERSONAL))

    def merge(self, state: State, replies: Mapping[ClientId, Reply]) -> State:
        """Return the global prototypes of the classes that a client sent, and the earlier ones of the others."""
        weighted = {client: replace(reply, weight=self.reply_weight(reply)) for client, reply in replies.items()}
        sums = mean(weighted, like=state.extra)
        weights, prototypes = sums["weights"], np.array(state.extra["prototypes"])
        sent = weights > 0
        prototypes[sent] = sums["prototypes"][sent] / weights[sent, np.newaxis]
        known = np.maximum(state.extra["weights"], sent).astype(np.float32)
        return State({}, {"prototypes": prototypes, "weights": known})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        return evaluate_own_model(ctx) if task.kind == EVALUATE else self.train(load_own_model(ctx), task, ctx)

    def train(self, model: Arrays, task: Task, ctx: ClientContext) -> Reply:
        """Train the client's model near the global prototypes, and return its own prototypes.

        Args:
            model: the client's own, in its shapes.
            task: has the global prototypes, shape (classes, inputs), and which classes have one, shape (classes,).
            ctx: the client context.
        """
        known = np.asarray(task.arrays["weights"]) > 0
        distance = prototype_distance(np.asarray(task.arrays["prototypes"]), known, self.lambda_)
        trained = ctx.learner.train(model, ctx.data, seed=ctx.seed, batch_loss=distance)
        ctx.memory.update(trained.arrays)
        counts = class_counts(ctx)
        weights = counts / len(ctx.data) if self.weighting == "samples" else np.minimum(counts, 1)
        means = class_means(ctx.learner.features(trained.arrays, ctx.data, 1).x, ctx.data.y, ctx.classes)
        arrays = {"prototypes": means * weights[:, np.newaxis], "weights": weights}
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
        return Reply({name: x.astype(np.float32) for name, x in arrays.items()}, len(ctx.data), metrics)


def feature_width(learner: Learner) -> int:
    """Return the number of inputs of the model's last linear layer.

    Raises:
        ExperimentError: the model has no linear layer at its end.
    """
    head, arrays = learner.head(1), learner.init(0)
    return next(int(arrays[name].shape[1]) for name in head if arrays[name].ndim == 2)


def class_means(features: NDArray[np.float32], y: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Return the mean features of each class, shape (classes, inputs); 0 for a class without samples.

    Args:
        features: shape (n, inputs).
        y: classes, int64 of shape (n,).
        classes: number of classes.
    """
    means = np.zeros((classes, features.shape[1]))
    for label in np.unique(y):
        means[label] = features[y == label].mean(axis=0, dtype=np.float64)
    return means
