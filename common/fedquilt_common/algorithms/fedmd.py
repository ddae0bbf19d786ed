"""FedMD: clients with models of their own learn from the mean of all clients' logits on the public set.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop, algorithm 1. Labels
are logits; all clients weigh equally.

``compress`` makes it CFedMD of Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human
Activity Recognition", MSc thesis, Lakehead University 2023, section 4.3 and equation 4.1. The server dequantises the
labels before it takes their mean. The thesis's equation leaves that step out; without it the mean has no meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedquilt_common.aggregation.soft_labels import Logits, Quantiser, mean_labels
from fedquilt_common.algorithm_api import ClientContext, Loss, Reply, ServerContext, TrainingResult, TrainingSettings
from fedquilt_common.algorithms.families.own_model import OwnModel, load_own_model
from fedquilt_common.training.losses import DISTILLATION, divergence, mix_samples, mixed_distillation
from fedquilt_common.types import Arrays, ClientId, Examples, Shapes


@dataclass(frozen=True)
class FedMD(OwnModel):
    """Own models that exchange logits.

    Attributes:
        kd_loss: mean squared error, mean absolute error, or Kullback-Leibler divergence.
        temperature: divides the logits in ``kl``, above 0; higher gives smoother labels.
        gamma: weight of the distillation's loss, above 0 and at most 1. Below 1, each pass goes over the client's own
            samples too, and their cross entropy has the weight 1 - gamma (FedAKD thesis, equation 3.10).
        compress: send labels as codes of ``bits`` bits, and the ranges that they span, in both directions.
        bits: of a label, 1 to 16; with ``compress`` only.
        ranges: what has a range of its own: each ``class``, as in the thesis's code; each ``sample``; or the whole
            ``tensor``, that is, all labels of a client. With ``compress`` only.
    """

    kd_loss: Literal["mse", "mae", "kl"] = "mse"
    temperature: float = 1.0
    gamma: float = 1.0
    compress: bool = False
    bits: int = 8
    ranges: Literal["class", "sample", "tensor"] = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < float("inf"):
            raise ValueError("temperature must be a positive number, such as 3")
        if self.temperature != 1 and self.kd_loss != "kl":
            raise ValueError(f"temperature = {self.temperature}: kd_loss {self.kd_loss} has none; set kd_loss: kl")
        if not 0 < self.gamma <= 1:
            raise ValueError("gamma must be above 0 and at most 1; 1 is distillation alone")
        self._check_quantiser()

    def _check_quantiser(self) -> None:
        if not isinstance(self.compress, bool):
            raise ValueError("compress must be true or false")
        if type(self.bits) is not int or not 1 <= self.bits <= 16:
            raise ValueError("bits must be a whole number from 1 to 16")
        if not self.compress and self.bits != 8:
            raise ValueError(f"bits = {self.bits}: only compressed labels have it; set compress: true")
        if not self.compress and self.ranges in ("sample", "tensor"):
            raise ValueError(f"ranges = {self.ranges!r}: only compressed labels have it; set compress: true")

    @property
    def loss(self) -> Loss:
        if self.temperature != 1:
            return functools.partial(divergence, temperature=self.temperature)
        return DISTILLATION[self.kd_loss]

    @property
    def quantiser(self) -> Quantiser | None:
        """Compresses the labels; None: they travel as they are."""
        return Quantiser(self.bits, self.ranges) if self.compress else None

    def pooling_problem(self) -> str:
        """Return why the coordinator needs each client's labels; empty if their mean is enough."""
        return f"its labels have {self.bits} bits and ranges of their own for each client" if self.compress else ""

    def privacy_problem(self) -> str:
        """Return why clients cannot train with differential privacy; empty if they can."""
        return "its loss mixes own and public samples (algorithm.gamma below 1)" if self.gamma < 1 else ""

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        mixing = _mixing_problem(training) if self.gamma < 1 else ""
        return mixing or super().training_problem(training)

    def encode(self, logits: Logits) -> Arrays:
        return self.quantiser.encode(logits) if self.quantiser else super().encode(logits)

    def decode(self, arrays: Arrays, classes: int) -> Logits:
        return self.quantiser.decode(arrays, classes) if self.quantiser else super().decode(arrays, classes)

    def label_shapes(self, ctx: ServerContext) -> Shapes:
        return self.quantiser.shapes(len(ctx.public), ctx.classes) if self.quantiser else super().label_shapes(ctx)

    @property
    def label_dtypes(self) -> Mapping[str, str]:
        return {"codes": "uint8"} if self.compress else {}

    def aggregate_labels(self, replies: Mapping[ClientId, Reply], classes: int) -> Arrays:
        if not self.compress:
            return super().aggregate_labels(replies, classes)
        decoded = {
            client: replace(reply, arrays={"labels": self.decode(reply.arrays, classes)})
            for client, reply in replies.items()
        }
        return self.encode(mean_labels(decoded, self.by_accuracy)["labels"])

    def learn_public(self, ctx: ClientContext, labelled: Examples, seed: int) -> TrainingResult:
        if self.gamma == 1:
            return super().learn_public(ctx, labelled, seed)
        mixed = mix_samples(ctx.data, labelled)
        loss = mixed_distillation(self.loss, self.gamma, len(ctx.data), len(labelled))
        return self.distil(ctx.learner, load_own_model(ctx), mixed, seed, loss=loss)


def _mixing_problem(training: TrainingSettings) -> str:
    """Return which setting does not suit own samples that are mixed with public ones; empty if all do."""
    if training.augment is not None:
        return (
            "augment: with algorithm.gamma below 1 the public samples would change, too, whose labels belong to "
            "the images as they are; remove the key"
        )
    if training.sampling == "balanced":
        return (
            "sampling = balanced: with algorithm.gamma below 1, own samples are mixed with public ones, which "
            "have no class; remove the key"
        )
    return ""
