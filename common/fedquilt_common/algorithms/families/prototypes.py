"""What FedDF and Fed-ET share: clients with different models train and send them, the coordinator distils them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
)
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays, ClientId, Examples


@dataclass(frozen=True)
class Prototypes(ABC):
    """``kd_epochs``: passes of a student over the public samples, at most, with Adam and ``kd_lr``."""

    declares: ClassVar[Declaration] = Declaration(any_models=True)

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
        """Whether clients say how accurate they are."""

    def ask(self, models: Sequence[Arrays], ctx: ServerContext) -> dict[ClientId, Task]:
        """Each client of the round trains the model of its kind; clients of one kind share what is sent."""
        bounds = {"accuracy": (0.0, 1.0)} if self.by_accuracy else {}
        kinds = {client: ctx.prototype_of(client) for client in ctx.select()}
        scalars = {"measure": self.by_accuracy}
        tasks = [Task("train", arrays, scalars, metrics=bounds) for arrays in models]
        return {client: tasks[kind] for client, kind in kinds.items()}

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed)
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
        if task.scalars.get("measure"):
            test = ctx.test if len(ctx.test) else ctx.data
            right = ctx.learner.predict(trained.arrays, test)[-1].argmax(axis=1) == test.y
            metrics["accuracy"] = float(right.mean())
        return Reply(trained.arrays, len(ctx.data), metrics)

    def student(
        self, learner: Learner, arrays: Arrays, data: Examples, loss: Loss, ctx: ServerContext, who: int, **how: Any
    ) -> Arrays:
        """``arrays`` after they have learned from ``data``; ``who`` is to draw other numbers than the next."""
        tuned = learner.with_settings(optimiser="adam", lr=self.kd_lr, momentum=0.0)
        seed = derive_seed(ctx.seed, "distil", ctx.round, who)
        return tuned.train_in_turn(arrays, [TrainingPhase(data, loss, **how)], [0] * self.kd_epochs, seed=seed).arrays


def initial_models(model: Arrays, ctx: ServerContext) -> list[Arrays]:
    """Of each prototype, from the run's seed; of the first it is the experiment's ``model`` if that has its shapes."""
    models: list[Arrays] = [
        one.init(derive_seed(ctx.seed, "model", number)) for number, one in enumerate(ctx.prototypes)
    ]
    alike = {name: x.shape for name, x in models[0].items()} == {name: x.shape for name, x in model.items()}
    return [model, *models[1:]] if alike else models


def average_prototypes(models: Sequence[Arrays], replies: Mapping[ClientId, Reply], ctx: ServerContext) -> list[Arrays]:
    """The mean of each prototype's clients, weighted by samples; one that nobody has trained stays as it is."""
    by_kind: list[dict[ClientId, Reply]] = [{} for _ in models]
    for client, reply in replies.items():
        by_kind[ctx.prototype_of(client)][client] = reply
    return [mean(mine, like=old) if mine else old for old, mine in zip(models, by_kind, strict=True)]


def client_logits(replies: Mapping[ClientId, Reply], ctx: ServerContext) -> NDArray[np.float32]:
    """What each client's model says of the public samples, shape (clients, n, classes), in client order."""
    data = Examples(ctx.public, np.zeros(len(ctx.public), np.int64))
    found: list[Logits] = [
        ctx.prototypes[ctx.prototype_of(client)].predict(replies[client].arrays, data)[-1] for client in sorted(replies)
    ]
    return np.stack(found)


def pack_models(models: Sequence[Arrays]) -> Arrays:
    """Several models as one: names such as ``1/fc.weight``."""
    return {f"{number}/{name}": x for number, arrays in enumerate(models) for name, x in arrays.items()}


def unpack_models(arrays: Arrays, count: int) -> list[Arrays]:
    """What ``pack_models`` has made of ``count`` models."""
    return [
        {name.partition("/")[2]: arrays[name] for name in arrays if name.partition("/")[0] == str(number)}
        for number in range(count)
    ]


def scores_of(models: Sequence[Arrays], ctx: ServerContext) -> dict[str, float]:
    """The first prototype's scores, and each other's accuracy."""
    each = [ctx.evaluate(arrays, learner=one) for arrays, one in zip(models, ctx.prototypes, strict=True)]
    return {**each[0], **{f"accuracy_{number}": one["accuracy"] for number, one in enumerate(each) if number}}
