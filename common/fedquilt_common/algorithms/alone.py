"""Each client trains a model of its own, alone: the control for algorithms that exchange soft labels.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, section 3.8: a model trained on its own local data set is the lower bound of figure 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.aggregation.client_evaluation import EVALUATE, PERSONAL, evaluate_on_clients
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.families.own_model import evaluate_own_model, load_own_model
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class Alone:
    """Own models that nobody exchanges anything about; no hyper-parameters.

    A client makes ``training.epochs`` passes over its samples in each round. It starts from the same numbers as with
    ``fedmd`` and the same seed.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        own_models=True,
        any_models=True,
        privacy="",
        pooled="its clients send nothing that has a mean",
        private_memory=True,
        public=False,
    )

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return State({})

    def round(self, state: State, ctx: ServerContext) -> Round:
        yield dict.fromkeys(ctx.select(), Task("train", expect={}))
        return (yield from evaluate_on_clients(State({}), ctx, PERSONAL))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return evaluate_own_model(ctx)
        trained = ctx.learner.train(load_own_model(ctx), ctx.data, seed=ctx.seed)
        ctx.memory.update(trained.arrays)
        return Reply({}, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})
