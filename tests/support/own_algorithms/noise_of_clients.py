"""Clients that add noise of their own instead of training: sums of their replies need as many digits as real ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedquilt_common.algorithm_api import ClientContext, Reply, Task
from fedquilt_common.algorithms.echo import Echo


@dataclass(frozen=True)
class Noise(Echo):
    """FedAvg's exchange around ``x`` plus normal noise of standard deviation ``step``, weighted by 1 to 89."""

    step: float = 0.01

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        rng, step = np.random.default_rng(ctx.seed), np.float32(self.step)
        arrays = {name: x + step * rng.standard_normal(x.shape, np.float32) for name, x in task.arrays.items()}
        return Reply(arrays, float(1 + ctx.seed % 89))
