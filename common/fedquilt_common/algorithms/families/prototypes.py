"""Prototypes, shared by FedDF and Fed-ET: clients train models of several kinds, the coordinator distils them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.soft_labels import Logits
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Learner,
    Loss,
    Reply,
    ServerContext,
    Task,
    TrainingPhase,
    TrainingSettings,
    half_precision_problem,
)
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.losses import at_deepest_output
from fedquilt_common.types import Arrays, ClientId, Examples


@dataclass(frozen=True)
class Prototypes(ABC):
    """Clients send their trained models, and the coordinator trains students on the public samples with Adam.

    Attributes:
        kd_epochs: passes of a student over the public samples, at most.
        kd_lr: the students' learning rate, above 0.
    """

    declares: ClassVar[Declaration] = Declaration(
        any_models=True,
        tasks=frozenset({"classification"}),
        pooled="it asks each client's model for its own labels",
        private_memory=False,
        public=True,
    )

    kd_epochs: int = 20
    kd_lr: float = 0.001

    def __post_init__(self) -> None:
        if self.kd_epochs < 0:
            raise ValueError("kd_epochs must be 0 or more")
        if not 0 < self.kd_lr < float("inf"):
            raise ValueError("kd_lr must be a positive number, such as 0.001")

    @property
    @abstractmethod
    def by_accuracy(self) -> bool:
        """Whether clients report their accuracy, which is that on their training samples: they keep no others."""

    def privacy_problem(self) -> str:
        """Return why it cannot train with differential privacy; empty if it can."""
        problem = "a client's accuracy reveals its samples in part; with `weighting: uniform` it sends none"
        return problem * self.by_accuracy

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        problem = half_precision_problem("adam", training.precision) if self.kd_epochs else ""
        return f"precision = fp16, and the coordinator distils with adam: {problem}" if problem else ""

    def make_tasks(self, models: Sequence[Arrays], ctx: ServerContext) -> dict[ClientId, Task]:
        """Return a training task for each client of the round; clients of one prototype share one publication.

        Args:
            models: each prototype's arrays, in its shapes.
            ctx: the server context.
        """
        bounds = {"accuracy": (0.0, 1.0)} if self.by_accuracy else {}
        kinds = {client: ctx.prototype_of(client) for client in ctx.select()}
        tasks = [Task("train", arrays, metrics=bounds) for arrays in models]
        return {client: tasks[kind] for client, kind in kinds.items()}

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed)
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
        if self.by_accuracy:
            right = ctx.learner.predict(trained.arrays, ctx.data)[-1].argmax(axis=1) == ctx.data.y
            metrics["accuracy"] = float(right.mean())
        return Reply(trained.arrays, len(ctx.data), metrics)

    def train_student(
        self, learner: Learner, arrays: Arrays, data: Examples, loss: Loss, ctx: ServerContext, number: int,
        **settings: Any,
    ) -> Arrays:  # fmt: skip
        """Train a model on the coordinator and return its new arrays.

        Args:
            learner: trains the model.
            arrays: the numbers to start from, in the model's shapes.
            data: public samples of shape (n, *input_shape), with the labels that ``loss`` takes.
            loss: between logits and labels.
            ctx: the server context.
            number: distinguishes the random numbers of the students of a round.
            settings: further fields of ``TrainingPhase``.
        """
        tuned = learner.with_settings(optimiser="adam", lr=self.kd_lr, momentum=0.0)
        seed = derive_seed(ctx.seed, "distil", ctx.round, number)
        phase = TrainingPhase(data, at_deepest_output(loss), public=True, **settings)
        return tuned.train_in_turn(arrays, [phase], [0] * self.kd_epochs, seed=seed).arrays


def initial_models(model: Arrays, ctx: ServerContext) -> list[Arrays]:
    """Return each prototype's initial arrays, drawn with the run's seed.

    Args:
        model: the experiment's model. It is the first prototype's if it has the same shapes.
        ctx: the server context.

    Returns:
        One model for each of ``ctx.prototypes``, in its shapes.
    """
    models: list[Arrays] = [
        learner.init(derive_seed(ctx.seed, "model", number)) for number, learner in enumerate(ctx.prototypes)
    ]
    same = {name: x.shape for name, x in models[0].items()} == {name: x.shape for name, x in model.items()}
    return [model, *models[1:]] if same else models


def average_prototypes(models: Sequence[Arrays], replies: Mapping[ClientId, Reply], ctx: ServerContext) -> list[Arrays]:
    """Average each prototype over its clients, weighted by samples.

    Args:
        models: each prototype's arrays, in its shapes.
        replies: each with the trained arrays of its client's prototype.
        ctx: the server context.

    Returns:
        The means in the shapes of ``models``; a prototype without replies does not change.
    """
    by_kind: list[dict[ClientId, Reply]] = [{} for _ in models]
    for client, reply in replies.items():
        by_kind[ctx.prototype_of(client)][client] = reply
    return [mean(trained, like=old) if trained else old for old, trained in zip(models, by_kind, strict=True)]


def predict_each(replies: Mapping[ClientId, Reply], ctx: ServerContext) -> Iterator[Logits]:
    """Predict the public samples with each client's trained model, one at a time.

    Yields:
        Float32 logits of shape (n, classes), in client order.
    """
    data = Examples(ctx.public, np.zeros(len(ctx.public), np.int64))
    for client in sorted(replies):
        yield ctx.prototypes[ctx.prototype_of(client)].predict(replies[client].arrays, data)[-1]


def pack_models(models: Sequence[Arrays]) -> Arrays:
    """Return several models as one, in their own shapes, under names such as ``1/fc.weight``."""
    return {f"{number}/{name}": x for number, arrays in enumerate(models) for name, x in arrays.items()}


def unpack_models(arrays: Arrays, count: int) -> list[Arrays]:
    """Return the ``count`` models that ``pack_models`` packed, in their own shapes."""
    return [
        {name.partition("/")[2]: arrays[name] for name in arrays if name.partition("/")[0] == str(number)}
        for number in range(count)
    ]


def evaluate_prototypes(models: Sequence[Arrays], ctx: ServerContext) -> dict[str, float]:
    """Score each prototype on the test split.

    Args:
        models: each prototype's arrays, in its shapes.
        ctx: the server context.

    Returns:
        The first prototype's scores, and ``accuracy_<number>`` of the others.
    """
    scores = [ctx.evaluate(arrays, learner=learner) for arrays, learner in zip(models, ctx.prototypes, strict=True)]
    return {**scores[0], **{f"accuracy_{number}": score["accuracy"] for number, score in enumerate(scores) if number}}
