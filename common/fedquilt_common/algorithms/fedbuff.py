"""FedBuff: the server steps with the first updates that arrive, and slow clients' updates count when they come.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, algorithm 1. The server takes
a step with every K updates: x <- x + server_lr / K * sum of s(t_i) * d_i. d_i is what client i's training changed in
the model that it had received, and t_i is the number of steps that the server has taken since. A round is one step.

Buffers, such as the variances of norm layers, have no gradient. Clients send their values, and the model takes the mean
with the same weights s(t_i). A sum of changes could make a variance negative: two clients may each have lowered it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Ask, ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId


@dataclass(frozen=True)
class FedBuff(FedAvg):
    """FedAvg that waits for nobody. ``participation.per_round`` clients train at once, and a round asks new ones.

    The coordinator evaluates the model, not the clients. A step that the deadline of a round makes with fewer updates
    than ``buffer`` divides by their number.

    Attributes:
        buffer: updates that make a step, K in the paper, at least 1 and at most ``participation.per_round``. None: half
            of that, rounded up.
        server_lr: the server's learning rate, above 0.
        staleness: an update that is t steps old counts (1 + t)^-staleness, 0 or more; the paper has 0.5.
    """

    declares: ClassVar[Declaration] = Declaration(
        privacy="",
        pooled="it weighs each update by its age, and takes the first ones that come",
        private_memory=False,
        public=False,
    )

    buffer: int | None = None
    server_lr: float = 1.0
    staleness: float = 0.5

    def __post_init__(self) -> None:
        if self.buffer is not None and (type(self.buffer) is not int or self.buffer < 1):
            raise ValueError(f"buffer = {self.buffer!r}: must be a whole number from 1, or null")
        if not 0 < self.server_lr < float("inf"):
            raise ValueError("server_lr must be a positive number")
        if not 0 <= self.staleness < float("inf"):
            raise ValueError("staleness must be 0 or a positive number")

    def participation_problem(self, per_round: int) -> str:
        """Return that more updates make a step than clients train at once; empty if not."""
        if self.buffer is None or self.buffer <= per_round:
            return ""
        return (
            f"algorithm.buffer = {self.buffer}: only {per_round} clients train at once (participation.per_round), so "
            f"{self.buffer} updates never come together; lower it, or raise participation.per_round"
        )

    def replies_per_round(self, per_round: int) -> int:
        """Return the updates that make a step, of ``per_round`` clients that train at once."""
        return self.buffer or (per_round + 1) // 2

    def round(self, state: State, ctx: ServerContext) -> Round:
        tasks = dict.fromkeys(choose_free(ctx), self.make_task(state, ctx))
        replies = yield Ask(tasks, until=self.replies_per_round(ctx.per_round))
        return self.merge(state, replies, ctx)

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        if not replies:
            return state
        scale = {c: (1.0 + ctx.round - reply.asked[0]) ** -self.staleness for c, reply in replies.items()}
        scaled = {client: replace(reply, weight=scale[client]) for client, reply in replies.items()}
        rate = self.server_lr * sum(scale[client] for client in sorted(replies)) / len(replies)
        means = mean(scaled, like=state.arrays)
        return State({
            name: _add(state.arrays[name], x, rate) if name in ctx.parameters else x for name, x in means.items()
        })  # fmt: skip

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        reply, learnt = super().train(task, ctx), ctx.learner.parameters
        sent = {name: x - task.arrays[name] if name in learnt else x for name, x in reply.arrays.items()}
        return replace(reply, arrays=sent)


def choose_free(ctx: ServerContext) -> list[ClientId]:
    """Draw clients that do not train yet, so that ``participation.per_round`` of the fleet do; in client order."""
    busy = [client for client in ctx.working if client in ctx.fleet]
    free = sorted(ctx.fleet.keys() - ctx.working.keys())
    count = min(max(0, ctx.per_round - len(busy)), len(free))
    return sorted(int(client) for client in ctx.rng.choice(free, count, replace=False)) if count else []


def _add(old: NDArray[Any], change: NDArray[Any], rate: float) -> NDArray[Any]:
    return (np.asarray(old, np.float64) + rate * np.asarray(change, np.float64)).astype(old.dtype)
