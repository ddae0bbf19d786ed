"""FedReb: a shared head learns rebalanced data; beside it, a private head learns the client's original data.

Liu, "Federated Learning with Rebalanced Dataset", MSc thesis, TU Delft 2023 (the FedReb thesis), chapter 3. The model
has a base and the head H1; each client adds a private head H2, which starts as a copy of the initial H1 (section 4.3).
Phase 1 uses the original data: the loss is that of the sum of H1 and H2; base and H2 learn, H1 does not change. Phase 2
uses the rebalanced data (algorithm 1): the loss is that of H1; base and H1 learn. Bases are averaged by original
samples, heads by effective ones (equations 3.7 to 3.10).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.aggregation.rebalance import (
    RebalancedExamples,
    ThresholdRounding,
    ThresholdRule,
    check_threshold,
    class_threshold,
    rebalance_examples,
)
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State, Task, TrainingPhase
from fedquilt_common.algorithm_api.training_settings import OWN_LOSSES
from fedquilt_common.algorithms.families.private_head import client_head, count_with_both_heads, sum_of_heads
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.submodels.heads import (
    SECOND_HEAD,
    TwoHeads,
    add_second_head,
    check_head_layers,
    split_second_head,
    two_heads_name,
)
from fedquilt_common.training.losses import class_counts, cross_entropy
from fedquilt_common.types import Arrays, ClientId, Examples

_SIZE: Final = (1.0, 1e12)


@dataclass(frozen=True)
class FedReb(FedAvg):
    """FedAvg of the base and the shared head; each client keeps a private head.

    Attributes:
        head_layers: number of linear layers at the model's end that form a head.
        threshold: samples of each class in the rebalanced data set: a rule over the classes that the client has, or a
            number.
        rounding: of the mean and the median.
        distinct: ``second-min`` takes the least count that differs from the minimum.
        augmentation: how classes are filled up; ``auto`` chooses by the shape of the samples.
        head_weights: the samples by which heads are averaged; ``original`` is the plain aggregation of table 5.3.
        freeze_head: H1 does not change in phase 1. False: it learns there too (algorithm 2, line 11).
        order: ``phases``: all epochs of phase 1, then those of phase 2; ``epochs``: one of each in turn.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.25,
        tasks=frozenset({"classification"}),
        privacy="it trains on augmented copies, so that one sample counts several times, and balances by class counts",
        pooled="base and head have means of their own, with different weights",
        private_memory=True,
        public=False,
    )

    head_layers: int = 2
    threshold: ThresholdRule | int = "mean"
    rounding: ThresholdRounding = "half-up"
    distinct: bool = True
    augmentation: Literal["auto", "five-step", "autoaugment", "time-series", "tabular", "repeat"] = "auto"
    head_weights: Literal["effective", "rebalanced", "original"] = "effective"
    freeze_head: bool = True
    order: Literal["phases", "epochs"] = "phases"

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)
        check_threshold(self.threshold)

    def loss_problem(self, task: LearningTask) -> str:
        """Return why it cannot train a model that has a loss of its own."""
        return OWN_LOSSES

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        from fedquilt_common.augment import choose_augmentation

        # Both refuse what does not suit before the run starts.
        ctx.learner.head(self.head_layers)
        choose_augmentation(self.augmentation, ctx.spare_test.x)
        return State(model)

    def make_task(self, state: State, ctx: ServerContext) -> Task:
        return Task("train", state.arrays, metrics={"effective": _SIZE, "rebalanced": _SIZE})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        head = ctx.learner.head(self.head_layers)
        base = {name: state.arrays[name] for name in state.arrays if name not in head}
        averaged = mean(replies, like=base)
        weighted = {client: replace(r, weight=self.head_weight(r)) for client, r in replies.items()}
        averaged |= mean(weighted, like={name: state.arrays[name] for name in state.arrays if name in head})
        return State({name: averaged[name] for name in state.arrays})

    def head_weight(self, reply: Reply) -> float:
        """Return the weight of a client's head in the average."""
        return reply.weight if self.head_weights == "original" else reply.metrics[self.head_weights]

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        rebalanced = self.rebalance(ctx)
        two_heads = add_second_head(task.arrays, client_head(ctx, self.head_layers))
        phases = self.phases(ctx.data, rebalanced.examples, two_heads, ctx.learner.head(self.head_layers))
        epochs = ctx.learner.epochs
        schedule = [0] * epochs + [1] * epochs if self.order == "phases" else [0, 1] * epochs
        part = TwoHeads(self.head_layers)
        trained = ctx.learner.train_in_turn(two_heads, phases, schedule, seed=ctx.seed, part=part)
        model, private_head = split_second_head(trained.arrays)
        ctx.memory.update(private_head)
        sizes = {"effective": float(rebalanced.effective), "rebalanced": float(len(rebalanced.examples))}
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, **sizes}
        return Reply(model, len(ctx.data), metrics)

    def rebalance(self, ctx: ClientContext) -> RebalancedExamples:
        """Return the client's rebalanced data set, the same in every round."""
        from fedquilt_common.augment import choose_augmentation

        threshold = class_threshold(class_counts(ctx), self.threshold, self.rounding, distinct=self.distinct)
        augment = choose_augmentation(self.augmentation, ctx.data.x)
        return rebalance_examples(ctx.data, threshold, augment, np.random.default_rng(ctx.lasting_seed))

    def phases(
        self, original: Examples, rebalanced: Examples, two_heads: Arrays, head: Collection[str]
    ) -> list[TrainingPhase]:
        """Return the two phases of algorithm 2: what each optimiser updates, and from which loss.

        Args:
            original: the client's samples, shape (n, *input_shape).
            rebalanced: the rebalanced samples, shape (m, *input_shape).
            two_heads: the model with its second head, in the shapes of ``add_second_head``.
            head: names of the head's arrays in the model.
        """
        shared_head = {two_heads_name(name) for name in head}
        first = two_heads.keys() - shared_head if self.freeze_head else two_heads.keys()
        second = {name for name in two_heads if not name.startswith(f"{SECOND_HEAD}.")}
        return [
            TrainingPhase(original, both_heads_loss, only=first),
            TrainingPhase(rebalanced, shared_head_loss, only=second),
        ]

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global model, ``arrays`` in the model's shapes, without and with the private head."""
        counts = count_with_both_heads(arrays, ctx, self.head_layers, sum_of_heads)
        return evaluation_reply(len(ctx.test), *counts)


def both_heads_loss(outputs: Any, targets: Any) -> Any:
    """Return cross entropy of the sum of H1's and H2's logits, each of shape (n, classes)."""
    return cross_entropy(outputs[0] + outputs[1], targets)


def shared_head_loss(outputs: Any, targets: Any) -> Any:
    """Return cross entropy of H1's logits, shape (n, classes)."""
    return cross_entropy(outputs[0], targets)
