"""FedAvg: every client trains the global model on its own data, the server takes the mean weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import EVALUATE, NOTHING, evaluate_on_clients, evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Penalty, Reply, Round, ServerContext, State, Task
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class FedAvg:
    """FedAvg has no hyper-parameters beyond the experiment's ``training``."""

    declares: ClassVar[Declaration] = Declaration(holdout=0.0)

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        replies = yield dict.fromkeys(ctx.select(), self.ask(state, ctx))
        return (yield from evaluate_on_clients(self.merge(state, replies, ctx), ctx))

    def ask(self, state: State, ctx: ServerContext) -> Task:
        """What the clients of a round are to train."""
        return Task("train", state.arrays)

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        """The new state from what the clients have trained."""
        return State(mean(replies, like=state.arrays))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, ctx) if len(ctx.test) else NOTHING
        return self.train(task, ctx)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """A client's part of a round."""
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, penalty=self.penalty())
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """How the global model ``arrays`` and the client's own do on its test samples; here they are the same."""
        logits = ctx.learner.predict(arrays, ctx.test)[-1]
        return evaluation_reply(ctx.test.y, logits, logits)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return ctx.evaluate(state.arrays)

    def penalty(self) -> Penalty | None:
        """What the client adds to its loss; FedAvg adds nothing."""
        return None
