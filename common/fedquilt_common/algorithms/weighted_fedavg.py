"""FedAvg whose clients weigh by the accuracy of their models, or equally, instead of by their samples.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, Table 4.1 (``PW`` and ``UW``) and equation 4.10. Each client tests the model that it has
trained, on its own test samples or, where it keeps none, on the official ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Task
from fedquilt_common.algorithms.fedavg import FedAvg

_LEAST_WEIGHT: Final = 1e-6
"""The mean needs weights above 0, also where no answer is right."""


@dataclass(frozen=True)
class WeightedFedAvg(FedAvg):
    """FedAvg with weights that do not depend on the clients' samples.

    Attributes:
        weighting: ``accuracy``: of the client's trained model on its test samples; ``uniform``: all equal.
    """

    declares: ClassVar[Declaration] = replace(FedAvg.declares, tests_updates=True, tasks=frozenset({"classification"}))

    weighting: Literal["accuracy", "uniform"] = "accuracy"

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        reply = super().train(task, ctx)
        if self.weighting == "uniform":
            return replace(reply, weight=1.0)
        scores = ctx.learner.evaluate(reply.arrays, ctx.test) if len(ctx.test) else {}
        accuracy = scores.get("accuracy", 0.0)
        return replace(reply, weight=max(accuracy, _LEAST_WEIGHT), metrics={**reply.metrics, "accuracy": accuracy})
