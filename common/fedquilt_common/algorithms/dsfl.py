"""DS-FL: the mean of the clients' probabilities is sharpened before all learn from it, a global model too.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
Training with Non-IID Private Data", IEEE Transactions on Mobile Computing 2023, algorithm 1. Clients train on their own
samples first; the global model is the experiment's, and the coordinator trains it on the public samples alone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedquilt_common.algorithms.own_model import OwnModel
from fedquilt_common.losses import cross_entropy
from fedquilt_common.seeds import derive_seed
from fedquilt_common.soft_labels import Logits, agreed, check_distils, sharpened, softmax
from fedquilt_common.types import Arrays, ClientId, Examples, Lab, Loss, Reply, Shapes, State, Task


@dataclass(frozen=True)
class DSFL(OwnModel):
    """``aggregation``: ``era``, entropy reduction with ``temperature``, or ``sa``, the mean as it is."""

    coordinator_tests: ClassVar[bool] = True

    order: Literal["labels-first", "local-first"] = "local-first"
    aggregation: Literal["era", "sa"] = "era"
    temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregation not in ("era", "sa"):
            raise ValueError(f"aggregation = {self.aggregation!r}: must be era or sa")
        if not 0 < self.temperature < float("inf"):
            raise ValueError("temperature must be a positive number, such as 0.1")

    @property
    def loss(self) -> Loss:
        return cross_entropy

    def encode(self, logits: Logits) -> Arrays:
        return {"probabilities": softmax(logits)}

    def decode(self, arrays: Arrays) -> Logits:
        return np.asarray(arrays["probabilities"])

    def shapes(self, lab: Lab) -> Shapes:
        return {"probabilities": (len(lab.public), lab.classes)}

    def agree(self, replies: Mapping[ClientId, Reply]) -> Arrays:
        mean = agreed(replies, self.by_accuracy)["probabilities"]
        return {"probabilities": sharpened(mean, self.temperature) if self.aggregation == "era" else mean}

    def init(self, model: Arrays, lab: Lab) -> State:
        check_distils(lab, self)
        return State(model)

    def closed(self, state: State, labels: Arrays, lab: Lab) -> State:
        seed, data = derive_seed(lab.seed, "distil", lab.round), Examples(lab.public, self.decode(labels))
        return State(self.distilled(lab.learner, state.arrays, data, seed).arrays)

    def evaluated(self, state: State, lab: Lab) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        own = yield from super().evaluated(state, lab)
        if not own.scores:
            return own
        of_all = self.evaluate(state, lab)
        return replace(own, scores={**own.scores, **of_all, "global_accuracy": of_all["accuracy"]})

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return lab.evaluate(state.arrays)
