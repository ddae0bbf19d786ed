"""Own models, shared by FedMD, FedAKD, CFedAKD and DS-FL: each client has a model of its own and sends soft labels.

FedProto and the control ``alone`` have own models, too, and share ``load_own_model`` and ``evaluate_own_model``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import (
    EVALUATE,
    NO_COUNTS,
    PERSONAL,
    evaluate_on_clients,
    evaluation_reply,
)
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
    TrainingSettings,
    half_precision_problem,
)
from fedquilt_common.algorithm_api.records import UNTESTED
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.losses import at_deepest_output
from fedquilt_common.types import Arrays, ClientId, Examples, OptimiserName, Scalar, Shapes

SCORE, DIGEST = "score", "digest"
_LEAST_WEIGHT: Final = 1e-6
"""The mean needs a weight above 0 even where every client's accuracy is 0, which a sum of replies does not show."""


@dataclass(frozen=True)
class OwnModel(ABC):
    """Distillation between clients through soft labels of the public set.

    A round has two exchanges. In ``score`` the clients label the public samples, and the coordinator aggregates the
    labels. In ``digest`` the clients learn from the aggregate, and from their own samples.

    Attributes:
        kd_epochs: passes over the public samples in a round; ``training.epochs`` counts those over a client's own.
        kd_optimiser: optimiser of these passes; None: the client's own.
        kd_lr: learning rate of these passes, above 0; None: the client's own.
        kd_batch: samples in a step of these passes; None: the client's own ``training.batch``.
        order: ``labels-first`` as above; ``local-first`` trains on the own samples before the labelling instead.
        warm_up_epochs: passes over its own samples when a client takes part for the first time.
        weighting: clients weigh equally, or by their accuracy on the samples on which they test.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        own_models=True,
        any_models=True,
        tasks=frozenset({"classification"}),
        privacy="",
        pooled="",
        private_memory=True,
        public=True,
    )

    kd_epochs: int = 1
    kd_optimiser: OptimiserName | None = None
    kd_lr: float | None = None
    kd_batch: int | None = None
    order: Literal["labels-first", "local-first"] = "labels-first"
    warm_up_epochs: int = 0
    weighting: Literal["uniform", "accuracy"] = "uniform"

    def __post_init__(self) -> None:
        if self.kd_epochs < 1:
            raise ValueError("kd_epochs must be 1 or more")
        if self.kd_lr is not None and not 0 < self.kd_lr < float("inf"):
            raise ValueError("kd_lr must be a positive number; leave it out for the client's own")
        if self.kd_batch is not None and (type(self.kd_batch) is not int or self.kd_batch < 1):
            raise ValueError("kd_batch must be a whole number of 1 or more; leave it out for training.batch")
        if self.warm_up_epochs < 0:
            raise ValueError("warm_up_epochs must be 0 or more")

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        problem = half_precision_problem(self.kd_optimiser or "sgd", training.precision)
        return f"precision = fp16, with algorithm.kd_optimiser: {problem}" if problem else ""

    def private_passes(self, epochs: int, rounds: int) -> int:
        """Return the passes over a client's own samples; those over the public ones spend no privacy."""
        return rounds * epochs + self.warm_up_epochs

    def reply_weight(self, reply: Reply) -> float:
        """Return the weight of a client's labels in the mean; a little even without any right answer."""
        return max(reply.metrics["accuracy"], _LEAST_WEIGHT) if self.by_accuracy else 1.0

    # -- what the algorithms override ----------------------------------------------------------

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss between a client's outputs and the aggregated labels."""

    def draw_scalars(self, ctx: ServerContext) -> Mapping[str, Scalar]:
        """Return the values that all clients of a round need to label the same samples."""
        return {}

    def public_samples(self, task: Task, ctx: ClientContext) -> NDArray[Any]:
        """Return the samples to label in this round, shape (n, *input_shape)."""
        return ctx.public

    def encode(self, logits: Logits) -> Arrays:
        """Return the labels as they are sent.

        Args:
            logits: a model's outputs, float32 of shape (n, classes).

        Returns:
            Arrays of the shapes in ``label_shapes``.
        """
        return {"logits": logits}

    def decode(self, arrays: Arrays, classes: int) -> Logits:
        """Return the labels for ``loss``, float32 of shape (n, classes), from what ``encode`` returned."""
        return np.asarray(arrays["logits"])

    def label_shapes(self, ctx: ServerContext) -> Shapes:
        """Return the shapes of the arrays that ``encode`` returns."""
        return {"logits": (len(ctx.public), ctx.classes)}

    @property
    def label_dtypes(self) -> Mapping[str, str]:
        """The dtypes of those arrays that are not float32."""
        return {}

    def aggregate_labels(self, replies: Mapping[ClientId, Reply], classes: int) -> Arrays:
        """Return one set of encoded labels from all clients', in the shapes of ``label_shapes``.

        Args:
            replies: the clients' encoded labels.
            classes: how many the labels have.
        """
        return mean_labels(replies, self.by_accuracy)

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_distil(ctx)
        return State({})

    def update_state(self, state: State, labels: Arrays, ctx: ServerContext) -> State:
        """Return the next state.

        Args:
            state: the state before this round.
            labels: the aggregated labels, in the shapes of ``label_shapes``; here they are all that is kept.
            ctx: the server context.
        """
        return State({}, labels)

    # -- the coordinator -----------------------------------------------------------------------

    @property
    def by_accuracy(self) -> bool:
        """Whether clients weigh by their accuracy."""
        return self.weighting == "accuracy"

    def round(self, state: State, ctx: ServerContext) -> Round:
        scalars = self.draw_scalars(ctx)
        bounds = {"accuracy": (0.0, 1.0)} if self.by_accuracy else {}
        score = Task(
            SCORE, scalars=scalars, expect=self.label_shapes(ctx), metrics=bounds, labels=True, dtypes=self.label_dtypes
        )  # fmt: skip
        replies = yield dict.fromkeys(ctx.select(), score)
        labels = self.aggregate_labels(replies, ctx.classes)
        yield dict.fromkeys(replies, Task(DIGEST, labels, scalars, expect={}, labels=True))
        return (yield from self.evaluate_clients(self.update_state(state, labels, ctx), ctx))

    def evaluate_clients(
        self, state: State, ctx: ServerContext
    ) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        """Let the clients evaluate their own models, in the round's last exchange."""
        return (yield from evaluate_on_clients(state, ctx, PERSONAL))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}

    # -- the clients ---------------------------------------------------------------------------

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return evaluate_own_model(ctx)
        return self.label_samples(task, ctx) if task.kind == SCORE else self.learn_labels(task, ctx)

    def label_samples(self, task: Task, ctx: ClientContext) -> Reply:
        """Return the client's encoded labels of the round's public samples."""
        metrics = self._train(ctx, self.order == "local-first")
        if self.by_accuracy:
            right = self._predict(ctx, ctx.test).argmax(axis=1) == ctx.test.y
            metrics |= {"accuracy": float(right.mean())} if len(right) else {"accuracy": 0.0, UNTESTED: 1.0}
        x = self.public_samples(task, ctx)
        labels = self.encode(self._predict(ctx, Examples(x, np.zeros(len(x), np.int64))))
        return Reply(labels, len(ctx.data), metrics)

    def learn_labels(self, task: Task, ctx: ClientContext) -> Reply:
        """Learn from the aggregated labels; the reply has metrics only."""
        labelled = Examples(self.public_samples(task, ctx), self.decode(task.arrays, ctx.classes))
        warmed_up = self._train(ctx, False)  # nothing, unless the board has lost the model that it labelled with
        distilled = self.learn_public(ctx, labelled, derive_seed(ctx.seed, "digest"))
        ctx.memory.update(distilled.arrays)
        metrics = self._train(ctx, self.order == "labels-first")
        seconds = (found.get("train_seconds", 0.0) for found in (warmed_up, metrics))
        metrics["train_seconds"] = distilled.seconds + sum(seconds)
        return Reply({}, len(ctx.data), {**metrics, "kd_loss": distilled.loss})

    def learn_public(self, ctx: ClientContext, labelled: Examples, seed: int) -> TrainingResult:
        """Train the client's own model on public samples, of shape (n, *input_shape), with labels (n, classes)."""
        return self.distil(ctx.learner, load_own_model(ctx), labelled, seed)

    def distil(
        self, learner: Learner, model: Arrays, data: Examples, seed: int, *, loss: Loss | None = None
    ) -> TrainingResult:
        """Train a model on soft labels with ``kd_epochs``, ``kd_optimiser``, ``kd_lr`` and ``kd_batch``.

        Args:
            learner: trains the model.
            model: the numbers to start from, in the model's shapes.
            data: public samples of shape (n, *input_shape), with labels of shape (n, classes).
            seed: shuffles the batches.
            loss: of logits and labels; None: the algorithm's own. With another one, ``data`` may hold a client's own
                samples.
        """
        changes: dict[str, Any] = {}
        if self.kd_optimiser is not None:
            changes |= {"optimiser": self.kd_optimiser, "momentum": 0.0}
        if self.kd_lr is not None:
            changes["lr"] = self.kd_lr
        if self.kd_batch is not None:
            changes["batch"] = self.kd_batch
        student = learner.with_settings(**changes) if changes else learner
        deepest = at_deepest_output(loss or self.loss)
        return student.train(model, data, seed=seed, loss=deepest, epochs=self.kd_epochs, public=loss is None)

    def _train(self, ctx: ClientContext, due: bool) -> dict[str, float]:
        """Train on the client's own samples and return metrics.

        The first training begins with the warm-up; the round's epochs follow if ``due``.
        """
        epochs = (0 if ctx.memory else self.warm_up_epochs) + (ctx.learner.epochs if due else 0)
        arrays = load_own_model(ctx)
        if not epochs:
            return {}
        trained: TrainingResult = ctx.learner.train(arrays, ctx.data, seed=ctx.seed, epochs=epochs)
        ctx.memory.update(trained.arrays)
        return {"loss": trained.loss, "train_seconds": trained.seconds}

    def _predict(self, ctx: ClientContext, data: Examples) -> Logits:
        """Return the own model's logits, float32 of shape (n, classes); n may be 0."""
        if not len(data):
            return np.zeros((0, ctx.classes), np.float32)
        return ctx.learner.predict(load_own_model(ctx), data)[-1]


def load_own_model(ctx: ClientContext) -> Arrays:
    """Return a client's own model from its private memory, in the model's shapes; its initial one until it has trained.

    The initial one depends on the run's seed and the client only, so it is the same with each algorithm.
    """
    return ctx.memory or ctx.learner.init(derive_seed(ctx.lasting_seed, "model"))


def evaluate_own_model(ctx: ClientContext) -> Reply:
    """Return the counts of a client's own model on its test samples."""
    if not len(ctx.test):
        return NO_COUNTS
    (counts,) = ctx.learner.count(load_own_model(ctx), ctx.test)
    return evaluation_reply(len(ctx.test), personal_counts=counts)
