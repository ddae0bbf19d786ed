"""FedDyn: a dynamic regulariser in each client's loss brings the clients' optima and the global one together.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, algorithm 1: client k minimises
L_k(w) - <g_k, w> + alpha / 2 * ||w - theta||^2, then g_k -= alpha * (w_k - theta). The server keeps
h -= alpha / m * sum over the round's clients of (w_k - theta), m being all clients, and takes mean(w_k) - h / alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.training.penalties import add_penalties, linear_penalty, proximal_penalty
from fedquilt_common.types import ClientId


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedAvg with a dynamic regulariser; the gradient memory g_k is private to the client.

    Attributes:
        alpha: weight of the regulariser, above 0; the FedReb thesis uses 0.01.
    """

    declares: ClassVar[Declaration] = replace(FedAvg.declares, private_memory=True)

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ValueError("alpha must be a positive number; without the regulariser use `name: fedavg`")

    def reply_weight(self, reply: Reply) -> float:
        """Return 1: all clients weigh the same."""
        return 1.0

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        return State(model, {name: np.zeros(model[name].shape, np.float32) for name in model if name in ctx.parameters})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        unweighted = {client: replace(reply, weight=1.0) for client, reply in replies.items()}
        arrays, extra = mean(unweighted, like=state.arrays), dict[str, NDArray[Any]]()
        for name in state.extra:
            change = np.asarray(arrays[name], np.float64) - state.arrays[name]
            h = state.extra[name] - self.alpha / ctx.clients * len(replies) * change
            arrays[name] = (arrays[name] - h / self.alpha).astype(arrays[name].dtype)
            extra[name] = h.astype(np.float32)
        return State(arrays, extra)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        theta = {name: np.asarray(task.arrays[name]) for name in task.arrays if name in ctx.learner.parameters}
        gradient = {name: ctx.memory.get(name, np.zeros_like(x)) for name, x in theta.items()}
        penalty = add_penalties(
            linear_penalty({name: -g for name, g in gradient.items()}), proximal_penalty(theta, self.alpha)
        )
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, penalty=penalty)
        ctx.memory.update({name: g - np.float32(self.alpha) * (trained.arrays[name] - theta[name])
                            for name, g in gradient.items()})  # fmt: skip
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})
