"""DS-FL: the server sharpens the mean of the clients' probabilities; all clients and a global model learn from it.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
Training with Non-IID Private Data", IEEE Transactions on Mobile Computing 2023, algorithm 1. Clients train on their own
samples first. The global model is the experiment's; the coordinator trains it on the public samples only. Where the
distillation has no settings of its own, the coordinator uses the experiment's ``training`` and the learning rate of the
round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedquilt_common.aggregation.soft_labels import Logits, check_can_distil, mean_labels, sharpen, softmax
from fedquilt_common.algorithm_api import Declaration, Loss, Reply, ServerContext, State, Task
from fedquilt_common.algorithms.families.own_model import OwnModel
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.losses import cross_entropy
from fedquilt_common.types import Arrays, ClientId, Examples, Shapes


@dataclass(frozen=True)
class DSFL(OwnModel):
    """Own models that exchange probabilities, and a global model.

    Attributes:
        aggregation: ``era``: entropy reduction with ``temperature``; ``sa``: the mean as it is.
        temperature: of the entropy reduction, above 0; lower is sharper.
    """

    declares: ClassVar[Declaration] = replace(OwnModel.declares, coordinator_tests=True)

    order: Literal["labels-first", "local-first"] = "local-first"
    aggregation: Literal["era", "sa"] = "era"
    temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < float("inf"):
            raise ValueError("temperature must be a positive number, such as 0.1")

    @property
    def loss(self) -> Loss:
        return cross_entropy

    def encode(self, logits: Logits) -> Arrays:
        return {"probabilities": softmax(logits)}

    def decode(self, arrays: Arrays, classes: int) -> Logits:
        return np.asarray(arrays["probabilities"])

    def label_shapes(self, ctx: ServerContext) -> Shapes:
        return {"probabilities": (len(ctx.public), ctx.classes)}

    def aggregate_labels(self, replies: Mapping[ClientId, Reply], classes: int) -> Arrays:
        mean = mean_labels(replies, self.by_accuracy)["probabilities"]
        return {"probabilities": sharpen(mean, self.temperature) if self.aggregation == "era" else mean}

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_distil(ctx)
        return State(model)

    def update_state(self, state: State, labels: Arrays, ctx: ServerContext) -> State:
        seed, data = derive_seed(ctx.seed, "distil", ctx.round), Examples(ctx.public, self.decode(labels, ctx.classes))
        return State(self.distil(ctx.learner, state.arrays, data, seed).arrays)

    def evaluate_clients(
        self, state: State, ctx: ServerContext
    ) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        evaluated = yield from super().evaluate_clients(state, ctx)
        if not evaluated.scores:
            return evaluated
        scores = self.evaluate(state, ctx)
        return replace(evaluated, scores={**evaluated.scores, **scores, "global_accuracy": scores["accuracy"]})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return ctx.evaluate(state.arrays)
