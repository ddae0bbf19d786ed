"""FedRolex: the sub-models are windows that roll over the channels of every layer, so that all train equally often.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022, and
chapter 3 of Alam's thesis "Federated Learning Benchmarks and Frameworks for AIoT" (2023), which has these numbers:
algorithm 3.1, equations 3.4 (window) and 3.10 (average), sections 3.3.6 (weights) and 3.3.7 (overlap). The global model
may be larger than any client's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedquilt_common.algorithm_api import Reply, ServerContext
from fedquilt_common.algorithms.families.partial_training import PartialTraining
from fedquilt_common.submodels.selection import Rounding, window
from fedquilt_common.submodels.slices import Group, Slice

Weighting = Literal["none", "samples", "model_size", "updates", "hybrid"]


@dataclass(frozen=True)
class FedRolex(PartialTraining):
    """Partial training of a rolling window; the other fields are those of ``PartialTraining``.

    Attributes:
        direction: windows advance (the paper) or retreat (the published code).
        rounding: how a width becomes a number of channels.
        step: channels that a window moves in each round, 0 or more.
        overlap: r in [0, 1]; windows move floor(width * (1 - r) * channels) further.
        weighting: a client's weight in the average: equal for all, its samples, the channels that it trains, its
            optimiser steps, or the product of the last two.
    """

    direction: Literal["forward", "backward"] = "forward"
    rounding: Rounding = "floor"
    step: int = 1
    overlap: float = 1.0
    weighting: Weighting = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.step) is not int or self.step < 0:
            raise ValueError(f"step = {self.step!r}: must be a whole number of channels, 0 or more")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap = {self.overlap!r}: must be between 0 and 1")

    def part(self, ctx: ServerContext, width: float) -> Slice:
        return window(ctx.anatomy, width, self.rounding, lambda group: self.window_start(group, width, ctx.round - 1))

    def window_start(self, group: Group, width: float, rounds: int) -> int:
        """Return the first channel of a group's window after ``rounds`` rounds; it wraps at the group's size."""
        stride = self.step + math.floor(round(width * (1 - self.overlap) * group.size, 9))
        return (stride * rounds if self.direction == "forward" else -stride * rounds) % group.size

    def update_weight(self, reply: Reply, part: Slice) -> float:
        channels = float(sum(kept.count for kept in part.kept))
        steps = max(1.0, reply.metrics.get("steps", 1.0))
        return {
            "none": 1.0, "samples": reply.weight, "model_size": channels, "updates": steps, "hybrid": channels * steps,
        }[self.weighting]  # fmt: skip
