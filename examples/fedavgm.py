"""An algorithm of your own: FedAvgM, FedAvg whose server keeps a velocity from round to round.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019: v <- beta * v + dw, w <- w - lr * v. With beta = 0 and lr = 1 it is FedAvg but for rounding.

Run it with any experiment, here from the folder that holds ``examples/``::

    PYTHONPATH=examples fedquilt simulate deploy/experiments/digits-fedavg.yaml --out runs/fedavgm \\
        --set algorithm.name=fedavgm:FedAvgM --set algorithm.beta=0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import fedquilt as fq


@dataclass(frozen=True)
class FedAvgM(fq.FedAvg):
    """The fields are the hyper-parameters, and keys of the experiment's ``algorithm`` section.

    ``beta`` is the server's momentum, ``lr`` its step along the velocity.
    """

    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError("beta must be at least 0 and below 1")
        if not 0 < self.lr < float("inf"):
            raise ValueError("lr must be a positive number")

    def merge(self, state: fq.State, replies: Mapping[fq.ClientId, fq.Reply], ctx: fq.ServerContext) -> fq.State:
        """Move the global model along the velocity.

        Args:
            state: the global model in ``arrays``, float32; the velocity in ``extra``, empty in the first round.
            replies: each with the client's trained arrays, in the shapes of the global model.
            ctx: gives the names of the arrays that are trained.

        Returns:
            The next global model and the next velocity.
        """
        average = fq.mean(replies, like=state.arrays)
        arrays, velocity = dict(average), {}
        for name, new in average.items():
            if name not in ctx.parameters:
                continue  # buffers of norm layers have no direction
            old = state.arrays[name]
            before = state.extra[name] if name in state.extra else np.zeros_like(new)
            velocity[name] = np.asarray(self.beta * before + (old - new), new.dtype)
            arrays[name] = np.asarray(old - self.lr * velocity[name], new.dtype)
        return fq.State(arrays, velocity)
