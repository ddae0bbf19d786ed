"""Echo learns nothing: each client adds a constant to what it received. It measures everything except training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Echo(FedAvg):
    """FedAvg's exchange around ``x + step`` instead of training. After r rounds every number has grown by r * step.

    Attributes:
        step: added to every number of every array.
    """

    declares: ClassVar[Declaration] = FedAvg.declares

    step: float = 0.5

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        return Reply({name: x + np.asarray(self.step, x.dtype) for name, x in task.arrays.items()})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return {}
