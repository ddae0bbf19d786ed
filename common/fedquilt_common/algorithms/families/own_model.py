"""What FedMD, FedAKD, CFedAKD and DS-FL share: each client has a model of its own, and only soft labels travel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE, OWN, evaluate_on_clients, evaluation_reply
from fedquilt_common.aggregation.soft_labels import Logits, check_can_distil, mean_labels
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Learner,
    Loss,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    TrainingResult,
)
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays, ClientId, Examples, Scalar, Shapes

SCORE, DIGEST = "score", "digest"


@dataclass(frozen=True)
class OwnModel(ABC):
    """A round: clients label the public samples (``score``), the coordinator makes one labelling of all, clients learn
    from it and from their own samples (``digest``).

    ``kd_epochs``: passes over the public samples in a round; those over a client's own are ``training.epochs``.
    ``kd_optimiser``, ``kd_lr``: of these; where they are not given, the client's own. ``order``: ``labels-first`` as
    above, or ``local-first``, with the training on the own samples before the labelling. ``warm_up_epochs``: passes
    over its own samples when a client takes part for the first time. ``weighting``: all clients alike, or by the
    accuracy that each has on the samples on which it tests.
    """

    declares: ClassVar[Declaration] = Declaration(holdout=0.0, own_models=True, any_models=True)

    kd_epochs: int = 1
    kd_optimiser: Literal["sgd", "adam", "rmsprop"] | None = None
    kd_lr: float | None = None
    order: Literal["labels-first", "local-first"] = "labels-first"
    warm_up_epochs: int = 0
    weighting: Literal["uniform", "accuracy"] = "uniform"

    def __post_init__(self) -> None:
        if self.kd_epochs < 1:
            raise ValueError("kd_epochs must be 1 or more")
        if self.kd_lr is not None and not 0 < self.kd_lr < float("inf"):
            raise ValueError("kd_lr must be a positive number; leave it out for the client's own")
        if self.warm_up_epochs < 0:
            raise ValueError("warm_up_epochs must be 0 or more")

    # -- what the algorithms differ in ---------------------------------------------------------

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """Between a client's outputs and the labels that were agreed on."""

    def draw(self, ctx: ServerContext) -> Mapping[str, Scalar]:
        """What all clients of a round must know to label the same samples."""
        return {}

    def samples(self, task: Task, ctx: ClientContext) -> NDArray[Any]:
        """The samples of the round, from the public ones."""
        return ctx.public

    def encode(self, logits: Logits) -> Arrays:
        """Labels as they travel, from a model's logits."""
        return {"logits": logits}

    def decode(self, arrays: Arrays) -> Logits:
        """What ``encode`` has made, as the ``loss`` takes it."""
        return np.asarray(arrays["logits"])

    def shapes(self, ctx: ServerContext) -> Shapes:
        """Of what ``encode`` makes."""
        return {"logits": (len(ctx.public), ctx.classes)}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Of those arrays that are not fp32."""
        return {}

    def aggregate_labels(self, replies: Mapping[ClientId, Reply]) -> Arrays:
        """One labelling from all."""
        return mean_labels(replies, self.by_accuracy)

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_distil(ctx, self)
        return State({})

    def next_state(self, state: State, labels: Arrays, ctx: ServerContext) -> State:
        """The new state; here the labels are all that is known of the round."""
        return State({}, labels)

    # -- the coordinator -----------------------------------------------------------------------

    @property
    def by_accuracy(self) -> bool:
        return self.weighting == "accuracy"

    def round(self, state: State, ctx: ServerContext) -> Round:
        drawn = self.draw(ctx)
        bounds = {"accuracy": (0.0, 1.0)} if self.by_accuracy else {}
        score = Task(
            SCORE, scalars=drawn, expect=self.shapes(ctx), metrics=bounds, labels=True, dtypes=self.dtypes
        )  # fmt: skip
        replies = yield dict.fromkeys(ctx.select(), score)
        labels = self.aggregate_labels(replies)
        yield dict.fromkeys(replies, Task(DIGEST, labels, drawn, expect={}, labels=True))
        return (yield from self.evaluate_clients(self.next_state(state, labels, ctx), ctx))

    def evaluate_clients(
        self, state: State, ctx: ServerContext
    ) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        """The last exchange: the clients' own models."""
        return (yield from evaluate_on_clients(state, ctx, OWN))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}

    # -- the clients ---------------------------------------------------------------------------

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return evaluation_reply(ctx.test.y, of_personal=self._outputs(ctx, ctx.test))
        return self.score(task, ctx) if task.kind == SCORE else self.digest(task, ctx)

    def score(self, task: Task, ctx: ClientContext) -> Reply:
        """The client's labels for the samples of the round."""
        metrics = self._train(ctx, self.order == "local-first")
        if self.by_accuracy:
            right = self._outputs(ctx, ctx.test).argmax(axis=1) == ctx.test.y
            metrics["accuracy"] = float(right.mean()) if len(right) else 0.0
        x = self.samples(task, ctx)
        labels = self.encode(self._outputs(ctx, Examples(x, np.zeros(len(x), np.int64))))
        return Reply(labels, len(ctx.data), metrics)

    def digest(self, task: Task, ctx: ClientContext) -> Reply:
        """Learn from what was agreed on; nothing but numbers about it goes back."""
        x, labels = self.samples(task, ctx), self.decode(task.arrays)
        seed = derive_seed(ctx.seed, "digest")
        learned = self.distil(ctx.learner, self._model(ctx), Examples(x, labels), seed)
        ctx.memory.update(learned.arrays)
        metrics = self._train(ctx, self.order == "labels-first")
        metrics["train_seconds"] = metrics.get("train_seconds", 0.0) + learned.seconds
        return Reply({}, len(ctx.data), {**metrics, "kd_loss": learned.loss})

    def distil(self, learner: Learner, model: Arrays, data: Examples, seed: int) -> TrainingResult:
        """``model`` after it has learned from labels."""
        changes: dict[str, Any] = {}
        if self.kd_optimiser is not None:
            changes |= {"optimiser": self.kd_optimiser, "momentum": 0.0}
        if self.kd_lr is not None:
            changes["lr"] = self.kd_lr
        student = learner.with_settings(**changes) if changes else learner
        return student.train(model, data, seed=seed, loss=self.loss, epochs=self.kd_epochs)

    def _model(self, ctx: ClientContext) -> Arrays:
        """The client's own model; until it has trained, as it was born."""
        return ctx.memory or ctx.learner.init(derive_seed(ctx.lasting_seed, "model"))

    def _train(self, ctx: ClientContext, due: bool) -> dict[str, float]:
        """On the client's own samples: the first time, and where it is ``due``."""
        epochs = (0 if ctx.memory else self.warm_up_epochs) + (ctx.learner.epochs if due else 0)
        arrays = self._model(ctx)
        if not epochs:
            return {}
        trained: TrainingResult = ctx.learner.train(arrays, ctx.data, seed=ctx.seed, epochs=epochs)
        ctx.memory.update(trained.arrays)
        return {"loss": trained.loss, "train_seconds": trained.seconds}

    def _outputs(self, ctx: ClientContext, data: Examples) -> Logits:
        if not len(data):
            return np.zeros((0, ctx.classes), np.float32)
        return ctx.learner.predict(self._model(ctx), data)[-1]
