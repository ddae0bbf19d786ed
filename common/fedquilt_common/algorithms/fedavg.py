"""FedAvg: each client trains the global model on its own data; the server averages the models, weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import (
    EVALUATE,
    NO_COUNTS,
    Evaluation,
    evaluate_on_clients,
    evaluation_reply,
)
from fedquilt_common.algorithm_api import ClientContext, Declaration, Penalty, Reply, Round, ServerContext, State, Task
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class FedAvg:
    """FedAvg has no hyper-parameters beyond the experiment's ``training``.

    Other algorithms derive from it and override one step: ``make_task``, ``merge``, ``train``, ``test``,
    ``evaluate_clients`` or ``penalty``. ``Declaration`` says when such an algorithm repeats ``declares``.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0, privacy="", pooled="", private_memory=False, public=False
    )

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        replies = yield dict.fromkeys(ctx.select(), self.make_task(state, ctx))
        return (yield from self.evaluate_clients(self.merge(state, replies, ctx), ctx))

    def evaluate_clients(self, state: State, ctx: ServerContext) -> Evaluation:
        """Let the clients evaluate, in the round's last exchange."""
        return (yield from evaluate_on_clients(state, ctx))

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        """Return the training task that all clients of a round receive."""
        return Task("train", state.arrays)

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        """Return the next state from the clients' replies, in the shapes of ``state``."""
        return State(mean(replies, like=state.arrays))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, ctx) if len(ctx.test) else NO_COUNTS
        return self.train(task, ctx)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """Train on the client's samples and return the trained arrays."""
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, penalty=self.penalty())
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global model and the client's own model on the client's test samples.

        Args:
            arrays: the global model, in the model's shapes. In FedAvg it is the client's model too.
            ctx: the client context; it has at least one test sample.
        """
        (counts,) = ctx.learner.count(arrays, ctx.test)
        return evaluation_reply(len(ctx.test), counts, counts)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return ctx.evaluate(state.arrays)

    def penalty(self) -> Penalty | None:
        """Return the term that a client adds to its loss; None in FedAvg."""
        return None
