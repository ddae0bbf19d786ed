"""What FedMD, FedAKD, CFedAKD and DS-FL share: each client has a model of its own, and only soft labels travel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.evaluation import EVALUATE, OWN, counted, measured
from fedquilt_common.losses import DISTILLATION
from fedquilt_common.seeds import derive_seed
from fedquilt_common.soft_labels import Logits, agreed, check_distils
from fedquilt_common.types import (
    Arrays,
    ClientId,
    Examples,
    Lab,
    Learner,
    Loss,
    Reply,
    Round,
    Scalar,
    Shapes,
    Site,
    State,
    Task,
    Trained,
)

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

    own_models: ClassVar[bool] = True
    any_models: ClassVar[bool] = True
    holdout: ClassVar[float] = 0.0

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
        if self.order not in ("labels-first", "local-first"):
            raise ValueError(f"order = {self.order!r}: must be labels-first or local-first")
        if self.weighting not in ("uniform", "accuracy"):
            raise ValueError(f"weighting = {self.weighting!r}: must be uniform or accuracy")

    # -- what the algorithms differ in ---------------------------------------------------------

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """Between a client's outputs and the labels that were agreed on."""

    def draw(self, lab: Lab) -> Mapping[str, Scalar]:
        """What all clients of a round must know to label the same samples."""
        return {}

    def samples(self, task: Task, site: Site) -> NDArray[Any]:
        """The samples of the round, from the public ones."""
        return site.public

    def encode(self, logits: Logits) -> Arrays:
        """Labels as they travel, from a model's logits."""
        return {"logits": logits}

    def decode(self, arrays: Arrays) -> Logits:
        """What ``encode`` has made, as the ``loss`` takes it."""
        return np.asarray(arrays["logits"])

    def shapes(self, lab: Lab) -> Shapes:
        """Of what ``encode`` makes."""
        return {"logits": (len(lab.public), lab.classes)}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Of those arrays that are not fp32."""
        return {}

    def agree(self, replies: Mapping[ClientId, Reply]) -> Arrays:
        """One labelling from all."""
        return agreed(replies, self.by_accuracy)

    def init(self, model: Arrays, lab: Lab) -> State:
        check_distils(lab, self)
        return State({})

    def closed(self, state: State, labels: Arrays, lab: Lab) -> State:
        """The new state; here the labels are all that is known of the round."""
        return State({}, labels)

    # -- the coordinator -----------------------------------------------------------------------

    @property
    def by_accuracy(self) -> bool:
        return self.weighting == "accuracy"

    def round(self, state: State, lab: Lab) -> Round:
        drawn = self.draw(lab)
        bounds = {"accuracy": (0.0, 1.0)} if self.by_accuracy else {}
        score = Task(
            SCORE, scalars=drawn, expect=self.shapes(lab), metrics=bounds, labels=True, dtypes=self.dtypes
        )  # fmt: skip
        replies = yield dict.fromkeys(lab.select(), score)
        labels = self.agree(replies)
        yield dict.fromkeys(replies, Task(DIGEST, labels, drawn, expect={}, labels=True))
        return (yield from self.evaluated(self.closed(state, labels, lab), lab))

    def evaluated(self, state: State, lab: Lab) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        """The last exchange: the clients' own models."""
        return (yield from measured(state, lab, OWN))

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return {}

    # -- the clients ---------------------------------------------------------------------------

    def work(self, task: Task, site: Site) -> Reply:
        if task.kind == EVALUATE:
            return counted(site.test.y, of_personal=self._outputs(site, site.test))
        return self.score(task, site) if task.kind == SCORE else self.digest(task, site)

    def score(self, task: Task, site: Site) -> Reply:
        """The client's labels for the samples of the round."""
        metrics = self._train(site, self.order == "local-first")
        if self.by_accuracy:
            right = self._outputs(site, site.test).argmax(axis=1) == site.test.y
            metrics["accuracy"] = float(right.mean()) if len(right) else 0.0
        x = self.samples(task, site)
        labels = self.encode(self._outputs(site, Examples(x, np.zeros(len(x), np.int64))))
        return Reply(labels, len(site.data), metrics)

    def digest(self, task: Task, site: Site) -> Reply:
        """Learn from what was agreed on; nothing but numbers about it goes back."""
        x, labels = self.samples(task, site), self.decode(task.arrays)
        seed = derive_seed(site.seed, "digest")
        learned = self.distilled(site.learner, self._model(site), Examples(x, labels), seed)
        site.memory.update(learned.arrays)
        metrics = self._train(site, self.order == "labels-first")
        metrics["train_seconds"] = metrics.get("train_seconds", 0.0) + learned.seconds
        return Reply({}, len(site.data), {**metrics, "kd_loss": learned.loss})

    def distilled(self, learner: Learner, model: Arrays, data: Examples, seed: int) -> Trained:
        """``model`` after it has learned from labels."""
        changes: dict[str, Any] = {}
        if self.kd_optimiser is not None:
            changes |= {"optimiser": self.kd_optimiser, "momentum": 0.0}
        if self.kd_lr is not None:
            changes["lr"] = self.kd_lr
        student = learner.tuned(**changes) if changes else learner
        return student.train(model, data, seed=seed, loss=self.loss, epochs=self.kd_epochs)

    def _model(self, site: Site) -> Arrays:
        """The client's own model; until it has trained, as it was born."""
        return site.memory or site.learner.init(derive_seed(site.lasting_seed, "model"))

    def _train(self, site: Site, due: bool) -> dict[str, float]:
        """On the client's own samples: the first time, and where it is ``due``."""
        epochs = (0 if site.memory else self.warm_up_epochs) + (site.learner.epochs if due else 0)
        arrays = self._model(site)
        if not epochs:
            return {}
        trained: Trained = site.learner.train(arrays, site.data, seed=site.seed, epochs=epochs)
        site.memory.update(trained.arrays)
        return {"loss": trained.loss, "train_seconds": trained.seconds}

    def _outputs(self, site: Site, data: Examples) -> Logits:
        if not len(data):
            return np.zeros((0, site.classes), np.float32)
        return site.learner.predict(self._model(site), data)[-1]


def check_loss(name: str) -> None:
    """Raises ValueError for a name that is none of ``DISTILLATION``."""
    if name not in DISTILLATION:
        raise ValueError(f"kd_loss = {name!r}: must be one of {', '.join(DISTILLATION)}")
