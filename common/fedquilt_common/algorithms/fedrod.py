"""FedROD: a generic head learns a class-balanced loss; a personal head on the same features adds its logits to it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, section 4,
with linear personal heads. The personal head learns on detached features; its logits are added to detached generic
logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Loss, Reply, ServerContext, State, Task
from fedquilt_common.algorithm_api.training_settings import OWN_LOSSES
from fedquilt_common.algorithms.families.private_head import client_head, count_with_both_heads, sum_of_heads
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.submodels.heads import TwoHeads, add_second_head, check_head_layers, split_second_head
from fedquilt_common.training.losses import balanced_softmax, class_counts, cross_entropy
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class FedROD(FedAvg):
    """FedAvg of the base and the generic head; each client keeps a personal head.

    Attributes:
        head_layers: number of linear layers at the model's end that form a head.
        balanced: train the generic head with the balanced softmax. False: plain cross entropy, and the global model is
            FedAvg's.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.25,
        tasks=frozenset({"classification"}),
        privacy="its loss uses the counts of the client's classes",
        pooled="",
        private_memory=True,
        sends_memory=False,
        public=False,
    )

    head_layers: int = 1
    balanced: bool = True

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)

    def loss_problem(self, task: LearningTask) -> str:
        """Return why it cannot train a model that has a loss of its own."""
        return OWN_LOSSES

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        ctx.learner.head(self.head_layers)  # refuses a model without such a head before the run starts
        return State(model)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        two_heads = add_second_head(task.arrays, client_head(ctx, self.head_layers))
        part = TwoHeads(self.head_layers, detached=True)
        trained = ctx.learner.train(two_heads, ctx.data, seed=ctx.seed, loss=self.loss(ctx), part=part)
        model, personal_head = split_second_head(trained.arrays)
        ctx.memory.update(personal_head)
        return Reply(model, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global model, ``arrays`` in the model's shapes, without and with the personal head."""
        counts = count_with_both_heads(arrays, ctx, self.head_layers, sum_of_heads)
        return evaluation_reply(len(ctx.test), *counts)

    def loss(self, ctx: ClientContext) -> Loss:
        """Return the sum of the generic head's loss and the personal head's."""
        generic_loss = balanced_softmax(class_counts(ctx)) if self.balanced else cross_entropy

        def sum_of_losses(outputs: Any, targets: Any) -> Any:
            generic, personal = outputs
            return generic_loss(generic, targets) + cross_entropy(generic.detach() + personal, targets)

        return sum_of_losses
