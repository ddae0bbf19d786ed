"""Private heads, shared by FedPer, FedRep and FedBABU: the server averages the bases, each client keeps a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import EVALUATE, NO_COUNTS, evaluate_on_clients, evaluation_reply
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    OutputViews,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    TrainingResult,
)
from fedquilt_common.learning_tasks import ScoreCounts
from fedquilt_common.submodels.heads import (
    TwoHeads,
    add_second_head,
    check_head_layers,
    drop_arrays,
    pick_arrays,
    shapes_of,
)
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api import Outputs


@dataclass(frozen=True)
class PrivateHead(ABC):
    """A model whose head stays on the client's board.

    With either ``global_head``, a client starts from the initial head, and continues with its own.

    Attributes:
        head_layers: number of linear layers at the model's end that each client keeps for itself.
        global_head: the head of the global model, on top of the averaged base. ``first``: the initial head, and no head
            leaves a board. ``mean``: clients send their heads too, and the global model gets their mean. The mean only
            serves the global model's accuracy, as the FedReb thesis measures it (section 5.3).
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.25,
        tasks=frozenset({"classification", "regression", "next-word"}),
        privacy="",
        pooled="",
        private_memory=True,
        public=False,
    )

    head_layers: int = 1
    global_head: Literal["first", "mean"] = "first"

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)

    @abstractmethod
    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """Train on the client's samples and return the arrays that leave the board."""

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        ctx.learner.head(self.head_layers)  # refuses a model without such a head before the run starts
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        sent = self._sent_names(state.arrays, ctx.learner.head(self.head_layers))
        task = Task("train", state.arrays, expect=shapes_of(state.arrays, sent))
        replies = yield dict.fromkeys(ctx.select(), task)
        averaged = mean(replies, like=pick_arrays(state.arrays, sent))
        return (yield from evaluate_on_clients(State({**state.arrays, **averaged}), ctx))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, ctx) if len(ctx.test) else NO_COUNTS
        return self.train(task, ctx)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return ctx.evaluate(state.arrays)

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global head and the client's head on one base.

        Args:
            arrays: the global model, in the model's shapes.
            ctx: the client context; it has at least one test sample.
        """
        return evaluation_reply(len(ctx.test), *count_with_both_heads(arrays, ctx, self.head_layers))

    def head_arrays(self, ctx: ClientContext) -> Collection[str]:
        """Return the names of the head's arrays."""
        return ctx.learner.head(self.head_layers)

    def keep_head(self, trained: TrainingResult, ctx: ClientContext, seconds: float = 0.0) -> Reply:
        """Store the head in the client's memory and return the rest as the reply.

        Args:
            trained: the whole model after training.
            ctx: the client context.
            seconds: training time besides that of ``trained``.
        """
        names = self.head_arrays(ctx)
        ctx.memory.update(pick_arrays(trained.arrays, names))
        metrics = {"loss": trained.loss, "train_seconds": seconds + trained.seconds}
        return Reply(pick_arrays(trained.arrays, self._sent_names(trained.arrays, names)), len(ctx.data), metrics)

    def _sent_names(self, arrays: Arrays, head: Collection[str]) -> Collection[str]:
        return drop_arrays(arrays, head if self.global_head == "first" else ()).keys()


def client_head(ctx: ClientContext, head_layers: int) -> Mapping[str, NDArray[Any]]:
    """Return the head in the client's private memory, or the initial model's head where it has none yet.

    Args:
        ctx: the client context.
        head_layers: number of linear layers that form the head.

    Returns:
        The head's arrays by name, in the shapes of the model's head.
    """
    return ctx.memory or pick_arrays(ctx.first_model(), ctx.learner.head(head_layers))


def count_with_both_heads(
    arrays: Arrays, ctx: ClientContext, head_layers: int, views: OutputViews = lambda outputs: outputs
) -> Sequence[ScoreCounts]:
    """Test the received model with its own head and with the client's, in one pass over the base.

    Args:
        arrays: the received model, in the model's shapes.
        ctx: the client context; it has at least one test sample.
        head_layers: number of linear layers that form the head.
        views: derives the outputs that are counted from those of the model's head and the client's head.

    Returns:
        Counts for each view: by default those of the model's head, then those of the client's.
    """
    two_heads = add_second_head(arrays, client_head(ctx, head_layers))
    return ctx.learner.count(two_heads, ctx.test, TwoHeads(head_layers), views)


def sum_of_heads(outputs: Outputs) -> Outputs:
    """Return the outputs of the shared head, and their sum with those of the client's head."""
    return [outputs[0], outputs[0] + outputs[1]]
