"""q-FedAvg: clients with a higher loss weigh more, so that the clients' scores become more even (q-FFL).

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, algorithm 2: with F_k the loss of the client's
samples before training and L = 1 / lr, Delta_k = F_k^q * L * (w - w_k),
h_k = q * F_k^(q-1) * ||L * (w - w_k)||^2 + L * F_k^q, and the server takes w - sum(Delta_k) / sum(h_k). As in the
authors' code, 1e-10 is added to each loss. With q = 0 it is FedAvg in which all clients weigh equally. Buffers of norm
layers, which the paper does not have, are averaged with the weights F_k^q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from fedquilt_common.aggregation.averages import mean, step_towards
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Reply,
    ServerContext,
    State,
    Task,
    TrainingSettings,
)
from fedquilt_common.algorithms.families.local_steps import sgd_problem
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Arrays, ClientId

PART, STEP = "fair_part", "fair_length"
"""The metrics with F_k^q L and h_k, where L is 1 / learning rate of the client."""
_LEAST_LOSS: Final = 1e-10


@dataclass(frozen=True)
class QFedAvg(FedAvg):
    """FedAvg that weighs a client by a power of its loss.

    Attributes:
        q: the power, 0 or more. A higher one makes the scores more even, and the server's steps shorter. The paper
            chooses it for each data set: 0.001 for Shakespeare, 1 for Synthetic and Sent140, 5 for Vehicle.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        tasks=frozenset({"classification", "regression", "next-word"}),
        privacy="a client sends the loss of its samples, without noise",
        pooled="each client's loss and the length of its update weigh it",
        private_memory=False,
        public=False,
    )

    q: float

    def __post_init__(self) -> None:
        if not 0 <= self.q < float("inf"):
            raise ValueError("q must be 0 or a positive number")

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        return sgd_problem(training, "the server's steps follow from the learning rate of SGD")

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        return Task("train", state.arrays, metrics={PART: (1e-300, 1e150), STEP: (0.0, 1e150)})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        fair = {client: replace(reply, weight=reply.metrics[PART]) for client, reply in replies.items()}
        parts = sum(replies[client].metrics[PART] for client in sorted(replies))
        # h_k is at least F_k^q L; a client that sends less would make the server's step longer than the mean's
        steps = sum(max(replies[client].metrics[name] for name in (PART, STEP)) for client in sorted(replies))
        average = mean(fair, like=state.arrays)
        trained = {name: average[name] for name in average if name in ctx.parameters}
        return State({**average, **step_towards(state.arrays, trained, parts / steps)})

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        loss = ctx.learner.evaluate(task.arrays, ctx.data)["loss"] + _LEAST_LOSS
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed)
        length = squared_distance(task.arrays, trained.arrays, ctx.learner.parameters)
        smoothness = 1 / ctx.learner.lr
        part = loss**self.q * smoothness
        step = self.q * loss ** (self.q - 1) * length * smoothness**2 + part
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, PART: part, STEP: step}
        return Reply(trained.arrays, len(ctx.data), metrics)


def squared_distance(one: Arrays, other: Arrays, names: frozenset[str]) -> float:
    """Return the squared Euclidean distance of two models over the named arrays, which have the same shapes."""
    return sum(float(((np.float64(one[name]) - other[name]) ** 2).sum()) for name in sorted(names) if name in one)
