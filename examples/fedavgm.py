"""FedAvgM: FedAvg whose server keeps a velocity, so that one round's direction carries into the next.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
CoRR 2019: v <- beta * v + dw, w <- w - lr * v. With beta = 0 and lr = 1 it equals FedAvg except for rounding.

Run it with any experiment, here in the folder that contains ``examples/``::

    PYTHONPATH=examples fedquilt simulate deploy/experiments/digits-fedavg.yaml --out runs/fedavgm \\
        --set algorithm.name=fedavgm:FedAvgM --set algorithm.beta=0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedquilt import ClientId, Declaration, FedAvg, Reply, ServerContext, State, mean


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server.

    Args:
        beta: momentum, at least 0 and below 1.
        lr: step along the velocity, above 0.
    """

    declares: ClassVar[Declaration] = FedAvg.declares  # `merge` reads only the mean of the replies, too

    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError("beta must be at least 0 and below 1")
        if not 0 < self.lr < float("inf"):
            raise ValueError("lr must be a positive number")

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        """Move the global model along the velocity.

        Args:
            state: the global model in ``arrays``, float32; the velocity in ``extra``, empty in the first round.
            replies: each with the client's trained arrays, in the shapes of the global model.
            ctx: names the arrays that are trained.

        Returns:
            The next global model and the next velocity.
        """
        average = mean(replies, like=state.arrays)
        arrays, velocity = dict(average), {}
        for name, new in average.items():
            if name not in ctx.parameters:
                continue  # buffers of norm layers have no direction
            old = state.arrays[name]
            before = state.extra[name] if name in state.extra else np.zeros_like(new)
            velocity[name] = np.asarray(self.beta * before + (old - new), new.dtype)
            arrays[name] = np.asarray(old - self.lr * velocity[name], new.dtype)
        return State(arrays, velocity)
