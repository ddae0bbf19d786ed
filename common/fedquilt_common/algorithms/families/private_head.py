"""What FedPer, FedRep and FedBABU share: the base is averaged, each client keeps a head of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import EVALUATE, NOTHING, evaluate_on_clients, evaluation_reply
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    TrainingResult,
)
from fedquilt_common.submodels.heads import (
    TwoHeads,
    add_second_head,
    check_head_layers,
    drop_arrays,
    head_names,
    pick_arrays,
    shapes_of,
)
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class PrivateHead(ABC):
    """``head_layers``: the last linear layers, which each client has for itself.

    ``global_head``: what the global model has on top of the averaged base. ``first``: the head that the run began
    with, and no head ever leaves a board; ``mean``: the clients' heads are sent and averaged too, for nothing but the
    global model's accuracy, as the FedReb thesis measures it (section 5.3). Training begins with the first head, or a
    client's own, in both.
    """

    declares: ClassVar[Declaration] = Declaration(holdout=0.25)

    head_layers: int = 1
    global_head: Literal["first", "mean"] = "first"

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)

    @abstractmethod
    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """A client's part of a round."""

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        head = head_names(ctx.anatomy, self.head_layers)  # a model that has no such head is refused now
        return State(model, pick_arrays(model, head) if self.global_head == "mean" else {})

    def round(self, state: State, ctx: ServerContext) -> Round:
        sent = self._sent(state.arrays, head_names(ctx.anatomy, self.head_layers))
        arrays = {**state.arrays, **state.extra} if len(state.extra) else state.arrays
        task = Task("train", arrays, expect=shapes_of(arrays, sent))
        replies = yield dict.fromkeys(ctx.select(), task)
        averaged = mean(replies, like=pick_arrays(arrays, sent))
        return (yield from evaluate_on_clients(State({**state.arrays, **averaged}, state.extra), ctx))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, ctx) if len(ctx.test) else NOTHING
        return self.train(task, ctx)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return ctx.evaluate(state.arrays)

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Both heads on the features of the same base."""
        of_global, of_own = predict_with_both_heads(arrays, ctx, self.head_layers)
        return evaluation_reply(ctx.test.y, of_global, of_own)

    def names(self, ctx: ClientContext) -> frozenset[str]:
        """The arrays of the head."""
        return head_names(ctx.anatomy, self.head_layers)

    def reply_arrays(self, trained: TrainingResult, ctx: ClientContext, seconds: float = 0.0) -> Reply:
        """Keep the head, send the rest. ``seconds`` of training beside those of ``trained``."""
        names = self.names(ctx)
        ctx.memory.update(pick_arrays(trained.arrays, names))
        metrics = {"loss": trained.loss, "train_seconds": seconds + trained.seconds}
        return Reply(pick_arrays(trained.arrays, self._sent(trained.arrays, names)), len(ctx.data), metrics)

    def _sent(self, arrays: Arrays, head: Collection[str]) -> Collection[str]:
        return drop_arrays(arrays, head if self.global_head == "first" else ()).keys()


def client_head(arrays: Arrays, ctx: ClientContext, head_layers: int) -> Mapping[str, NDArray[Any]]:
    """The head in the client's private memory; a copy of the model's until it has one."""
    return ctx.memory or pick_arrays(arrays, head_names(ctx.anatomy, head_layers))


def predict_with_both_heads(arrays: Arrays, ctx: ClientContext, head_layers: int) -> list[NDArray[np.float32]]:
    """Logits, shape (n, classes), of the model's head and of the client's own for its test samples, in one pass."""
    arranged = add_second_head(arrays, client_head(arrays, ctx, head_layers))
    return ctx.learner.predict(arranged, ctx.test, TwoHeads(head_layers))
