"""FedROD: a generic head learnt with a class-balanced loss, and on the same features a personal head that adds to it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, section 4,
with linear personal heads. The personal head learns on detached features, its logits added to detached generic ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Loss, Reply, ServerContext, State, Task
from fedquilt_common.algorithms.families.private_head import client_head, predict_with_both_heads
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.submodels.heads import TwoHeads, add_second_head, check_head_layers, head_names, split_second_head
from fedquilt_common.training.losses import balanced_softmax, class_counts, cross_entropy
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class FedROD(FedAvg):
    """``balanced``: the generic head minimises the balanced softmax; without, plain cross entropy, and the global model
    is FedAvg's. ``head_layers``: the last linear layers, which each client has a second time for itself."""

    declares: ClassVar[Declaration] = Declaration(holdout=0.25)

    head_layers: int = 1
    balanced: bool = True

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        head_names(ctx.anatomy, self.head_layers)
        return State(model)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        arranged = add_second_head(task.arrays, client_head(task.arrays, ctx, self.head_layers))
        heads = TwoHeads(self.head_layers, detached=True)
        trained = ctx.learner.train(arranged, ctx.data, seed=ctx.seed, loss=self.loss(ctx), part=heads)
        model, own = split_second_head(trained.arrays)
        ctx.memory.update(own)
        return Reply(model, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        generic, added = predict_with_both_heads(arrays, ctx, self.head_layers)
        return evaluation_reply(ctx.test.y, generic, generic + added)

    def loss(self, ctx: ClientContext) -> Loss:
        """The generic head's loss and the personal head's."""
        generic = balanced_softmax(class_counts(ctx)) if self.balanced else cross_entropy

        def both(outputs: Any, targets: Any) -> Any:
            logits, added = outputs
            return generic(logits, targets) + cross_entropy(logits.detach() + added, targets)

        return both
