"""CFedAKD: FedAKD with labels of eight bits, and the least and greatest label of each class, in both directions.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, section 4.3, algorithm 2 and equation 4.1. The server dequantises the labels before it takes
their mean. The thesis's equation leaves that step out; without it the mean has no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedquilt_common.aggregation.soft_labels import Logits, dequantise, mean_labels, quantise
from fedquilt_common.algorithm_api import Declaration, Reply, ServerContext
from fedquilt_common.algorithms.fedakd import FedAKD
from fedquilt_common.types import Arrays, ClientId, Shapes


@dataclass(frozen=True)
class CFedAKD(FedAKD):
    """FedAKD with quantised labels; it has FedAKD's fields."""

    declares: ClassVar[Declaration] = replace(
        FedAKD.declares, pooled="its labels have eight bits and a range of their own for each client"
    )

    def encode(self, logits: Logits) -> Arrays:
        return quantise(logits)

    def decode(self, arrays: Arrays) -> Logits:
        return dequantise(arrays)

    def label_shapes(self, ctx: ServerContext) -> Shapes:
        return {"codes": (len(ctx.public), ctx.classes), "range": (2, ctx.classes)}

    @property
    def label_dtypes(self) -> Mapping[str, str]:
        return {"codes": "uint8"}

    def aggregate_labels(self, replies: Mapping[ClientId, Reply]) -> Arrays:
        decoded = {
            client: replace(reply, arrays={"labels": dequantise(reply.arrays)}) for client, reply in replies.items()
        }
        return quantise(mean_labels(decoded, self.by_accuracy)["labels"])
