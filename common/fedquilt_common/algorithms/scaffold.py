"""SCAFFOLD: control variates correct each client's steps by the difference between its gradient and that of all.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, algorithm 1: client i
steps along g_i(y) - c_i + c, then its control variate c_i becomes g_i(x) (option I) or
c_i - c + (x - y_i) / (K * lr) (option II). The server takes x + server_lr * mean(y_i - x), and adds to c the part of
all clients that took part times mean(change of c_i). All control variates start at 0, and all clients weigh equally.

With momentum, K is the number of gradients that the steps add up to, as FedNova counts them. The paper has no norm
layers; their buffers are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean, step_towards
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Reply,
    ServerContext,
    State,
    Task,
    TrainingResult,
    TrainingSettings,
)
from fedquilt_common.algorithms.families.local_steps import GRADIENTS_ADD_UP, gradient_count, sgd_problem
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.training.penalties import linear_penalty
from fedquilt_common.types import Arrays, ClientId

_Variates = dict[str, NDArray[Any]]
_ONE_STEP: Final = {
    "optimiser": "sgd", "lr": 1.0, "momentum": 0.0, "precision": "fp32", "sampling": "shuffled", "augment": None,
    "mosaic": 0.0,
}  # fmt: skip
"""Settings of a step along the gradient of each sample as it is."""


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg with control variates; c_i is in each client's private memory, c travels with the model.

    Attributes:
        option: how a client renews its control variate. `I`: the gradient of all its samples at the received model, one
            more pass with all samples in one batch. `II`: from its own steps, at no cost; the paper's experiments use
            it.
        server_lr: the server's learning rate, above 0; 1 in the paper's experiments.
    """

    declares: ClassVar[Declaration] = Declaration(holdout=0.0, pooled="", private_memory=True, public=False)

    option: Literal["I", "II"] = "II"
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.server_lr < float("inf"):
            raise ValueError("server_lr must be a positive number")

    def privacy_problem(self) -> str:
        """Return why it cannot train with differential privacy; empty if it can."""
        return "algorithm.option = I takes a further gradient, which no budget plans for; `option: II` does not" * (
            self.option == "I"
        )

    def training_problem(self, training: TrainingSettings) -> str:
        """Return which setting of a client's training does not suit; empty if all do."""
        return sgd_problem(training, GRADIENTS_ADD_UP)

    def reply_weight(self, reply: Reply) -> float:
        """Return 1: all clients weigh the same."""
        return 1.0

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        zeros = {f"c/{name}": np.zeros(model[name].shape, np.float32) for name in model if name in ctx.parameters}
        return State(model, zeros)

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        return Task("train", {**state.arrays, **state.extra})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        equal = {client: replace(reply, weight=1.0) for client, reply in replies.items()}
        controls = step_towards(state.extra, mean(equal, like=state.extra), len(replies) / ctx.clients)
        average = mean(equal, like=state.arrays)
        trained = {name: average[name] for name in average if f"c/{name}" in controls}
        return State({**average, **step_towards(state.arrays, trained, self.server_lr)}, controls)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        model = {name: np.asarray(task.arrays[name]) for name in task.arrays if not name.startswith("c/")}
        shared = {name: np.asarray(task.arrays[f"c/{name}"]) for name in model if f"c/{name}" in task.arrays}
        own = {name: ctx.memory.get(name, np.zeros_like(c)) for name, c in shared.items()}
        correction = linear_penalty({name: c - own[name] for name, c in shared.items()})
        trained = ctx.learner.train(model, ctx.data, seed=ctx.seed, penalty=correction)
        new = self.renew_control(model, trained, shared, own, ctx)
        ctx.memory.update(new)
        sent = {f"c/{name}": (c + (new[name] - np.float64(own[name]))).astype(c.dtype) for name, c in shared.items()}
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
        return Reply({**trained.arrays, **sent}, len(ctx.data), metrics)

    def renew_control(
        self, model: Arrays, trained: TrainingResult, shared: Arrays, own: Arrays, ctx: ClientContext
    ) -> _Variates:
        """Return the client's next control variate, in the shapes of the parameters.

        Args:
            model: the received model x.
            trained: the client's steps from x to y_i.
            shared: the server's control variate c.
            own: the client's control variate c_i.
            ctx: the client context.
        """
        if self.option == "I":
            return full_gradient(model, shared, ctx)
        length = ctx.learner.lr * gradient_count(trained.steps, ctx.learner.momentum)
        return {
            name: (own[name] - c + (np.float64(model[name]) - trained.arrays[name]) / length).astype(c.dtype)
            for name, c in shared.items()
        }


def full_gradient(model: Arrays, names: Arrays, ctx: ClientContext) -> _Variates:
    """Return the gradient of the loss of all the client's samples: a step of length 1 with all of them in one batch.

    Args:
        model: where the gradient is taken, in the model's shapes.
        names: has the names of the parameters.
        ctx: the client context.
    """
    step = ctx.learner.with_settings(**_ONE_STEP, batch=len(ctx.data)).train(model, ctx.data, seed=ctx.seed, epochs=1)
    return {name: np.asarray(model[name] - step.arrays[name], np.float32) for name in names}
