"""FedAKD: FedMD on public samples that are mixed again in each round; clients weigh by their accuracy.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, algorithm 1. The coordinator draws a seed for the permutation, alpha, and lambda from
Beta(alpha, alpha): one number for each round, so that all clients mix equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from fedquilt_common.aggregation.soft_labels import check_can_mix, mixup
from fedquilt_common.algorithm_api import ClientContext, ServerContext, State, Task
from fedquilt_common.algorithms.fedmd import FedMD
from fedquilt_common.types import Arrays, Scalar


@dataclass(frozen=True)
class FedAKD(FedMD):
    """FedMD with mixup of the public samples.

    Attributes:
        alpha: parameter of the mixup's Beta distribution, above 0. None: each round draws its own from (0, 1].
            1: lambda is uniform, as in the code published with the thesis.
    """

    weighting: Literal["uniform", "accuracy"] = "accuracy"
    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise ValueError("alpha must be a positive number; leave it out to draw one in each round")

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        check_can_mix(ctx)
        return super().init(model, ctx)

    def draw_scalars(self, ctx: ServerContext) -> Mapping[str, Scalar]:
        seed = int(ctx.rng.integers(1 << 62))
        alpha = self.alpha if self.alpha is not None else 1.0 - float(ctx.rng.random())
        return {"seed": seed, "alpha": alpha, "lambda": float(ctx.rng.beta(alpha, alpha))}

    def public_samples(self, task: Task, ctx: ClientContext) -> NDArray[Any]:
        return mixup(ctx.public, int(task.scalars["seed"]), float(task.scalars["lambda"]))
