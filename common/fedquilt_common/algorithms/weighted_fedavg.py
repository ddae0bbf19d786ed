"""FedAvg whose clients weigh by the accuracy of their models, or equally, instead of by their samples.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, Table 4.1 (``PW`` and ``UW``) and equation 4.10. Each client tests the model that it has
trained on its own test samples or, without ``data.holdout``, on the official ones. A client without test samples is
weighted as if its accuracy were 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State, Task
from fedquilt_common.algorithm_api.records import UNTESTED
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId

_LEAST_WEIGHT: Final = 1e-6
"""The mean needs weights above 0, even where no answer is right."""


@dataclass(frozen=True)
class WeightedFedAvg(FedAvg):
    """FedAvg with weights that do not depend on the clients' samples.

    Attributes:
        weighting: ``accuracy``: of the client's trained model on its test samples; ``uniform``: all equal.
    """

    declares: ClassVar[Declaration] = replace(FedAvg.declares, tests_updates=True, tasks=frozenset({"classification"}))

    weighting: Literal["accuracy", "uniform"] = "accuracy"

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        bounds = {"accuracy": (0.0, 1.0)} if self.weighting == "accuracy" else {}
        return replace(super().make_task(state, ctx), metrics=bounds)

    def reply_weight(self, reply: Reply) -> float:
        """Return the weight of a client in the mean; a little even without any right answer."""
        return max(reply.metrics["accuracy"], _LEAST_WEIGHT) if self.weighting == "accuracy" else 1.0

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        weighted = {client: replace(reply, weight=self.reply_weight(reply)) for client, reply in replies.items()}
        return super().merge(state, weighted, ctx)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        reply = super().train(task, ctx)
        if self.weighting == "uniform":
            return reply
        if not len(ctx.test):
            return replace(reply, metrics={**reply.metrics, "accuracy": 0.0, UNTESTED: 1.0})
        accuracy = ctx.learner.evaluate(reply.arrays, ctx.test).get("accuracy", 0.0)
        return replace(reply, metrics={**reply.metrics, "accuracy": accuracy})
