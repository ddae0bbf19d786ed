"""Each client trains a model of its own, alone: the control for algorithms that exchange soft labels.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, section 3.8: a model trained on its own local data set is the lower bound of figure 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.aggregation.client_evaluation import (
    EVALUATE,
    NO_COUNTS,
    PERSONAL,
    evaluate_on_clients,
    evaluation_reply,
)
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class Alone:
    """Own models that nobody exchanges anything about; no hyper-parameters.

    A client makes ``training.epochs`` passes over its samples in each round. It starts from the same numbers as with
    ``fedmd`` and the same seed.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0, own_models=True, any_models=True, privacy="", pooled="its clients send nothing that has a mean"
    )

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return State({})

    def round(self, state: State, ctx: ServerContext) -> Round:
        yield dict.fromkeys(ctx.select(), Task("train", expect={}))
        return (yield from evaluate_on_clients(State({}), ctx, PERSONAL))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        own = ctx.memory or ctx.learner.init(derive_seed(ctx.lasting_seed, "model"))
        if task.kind == EVALUATE:
            return self._test(own, ctx) if len(ctx.test) else NO_COUNTS
        trained = ctx.learner.train(own, ctx.data, seed=ctx.seed)
        ctx.memory.update(trained.arrays)
        return Reply({}, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def _test(self, own: Arrays, ctx: ClientContext) -> Reply:
        (counts,) = ctx.learner.count(own, ctx.test)
        return evaluation_reply(len(ctx.test), personal_counts=counts)
