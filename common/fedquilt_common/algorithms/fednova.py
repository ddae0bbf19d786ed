"""FedNova: the server averages the clients' normalised updates, so that clients with more local steps pull no more.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
equation 8: x <- x - tau * sum of p_i * (x - y_i) / ||a_i||_1. p_i is the client's part of the round's samples,
||a_i||_1 the number of gradients that its steps add up to, and tau = sum of p_i * ||a_i||_1. Here a_i has the learning
rate in it: the paper's clients have the same one, ours may have their own. It is FedAvg if all clients take equally
many steps of the same rate. Buffers of norm layers have no gradient; they are averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedquilt_common.aggregation.averages import mean, step_towards
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Penalty,
    Reply,
    ServerContext,
    State,
    Task,
    TrainingSettings,
)
from fedquilt_common.algorithms.families.local_steps import GRADIENTS_ADD_UP, gradient_count, sgd_problem
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.training.penalties import pull_to_start
from fedquilt_common.types import ClientId

LENGTH = "step_length"
"""The metric with ||a_i||_1."""


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg of normalised updates. Momentum and weight decay are those of ``training``.

    Attributes:
        mu: weight of a proximal term as in FedProx, 0 or more; 0, the default, has none. Times the clients' learning
            rate it must be below 1.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        privacy="the server divides by the number of gradients of each client, which private clients withhold",
        pooled="it divides each update by the number of the client's steps",
        private_memory=False,
        public=False,
    )

    mu: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise ValueError("mu must be 0 or a positive number")

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        problem = sgd_problem(training, GRADIENTS_ADD_UP)
        if not problem and training.lr * self.mu >= 1:
            return (
                f"lr = {training.lr:g}: times mu = {self.mu:g} it is {training.lr * self.mu:g}, and from 1 on the "
                "proximal term moves a client past the global model; choose a smaller training.lr or algorithm.mu"
            )
        return problem

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        return Task("train", state.arrays, metrics={LENGTH: (1e-30, 1e12)})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        lengths = {client: reply.metrics[LENGTH] for client, reply in replies.items()}
        most, samples = max(lengths.values()), sum(replies[client].weight for client in sorted(replies))
        normalised = {c: replace(reply, weight=reply.weight * (most / lengths[c])) for c, reply in replies.items()}
        tau = sum(replies[client].weight * lengths[client] for client in sorted(replies)) / samples
        length = tau / most * sum(normalised[client].weight for client in sorted(replies)) / samples
        parameters = {name: state.arrays[name] for name in state.arrays if name in ctx.parameters}
        buffers = mean(replies, like={name: state.arrays[name] for name in state.arrays if name not in parameters})
        new = buffers | step_towards(parameters, mean(normalised, like=parameters), length)
        return State({name: new[name] for name in state.arrays})

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, penalty=self.penalty())
        lr = ctx.learner.lr
        count = gradient_count(trained.steps, ctx.learner.momentum, lr * self.mu)
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, LENGTH: lr * count}
        return Reply(trained.arrays, len(ctx.data), metrics)

    def penalty(self) -> Penalty | None:
        return pull_to_start(self.mu) if self.mu else None
