"""FedReb: a shared head learnt on rebalanced data, beside a private head learnt on the client's own.

Liu, "Federated Learning with Rebalanced Dataset", MSc thesis, TU Delft 2023 (the FedReb thesis), chapter 3. The model
has a base and the head H1; each client adds a private head H2, at first a copy of H1. Phase 1 goes through the original
data: H1 and H2 answer together, base and H2 learn, H1 stands still. Phase 2 goes through the rebalanced data (algorithm
1): H1 answers alone, base and H1 learn. Bases are averaged by original samples, heads by effective ones (equations 3.7
to 3.10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.aggregation.rebalance import (
    RebalancedExamples,
    Rounding,
    Rule,
    check_threshold,
    rebalance_examples,
    threshold_of,
)
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State, Task, TrainingPhase
from fedquilt_common.algorithms.families.private_head import client_head, predict_with_both_heads
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.submodels.heads import (
    SECOND,
    TwoHeads,
    add_second_head,
    check_head_layers,
    head_names,
    split_second_head,
    whole,
)
from fedquilt_common.training.losses import class_counts, cross_entropy
from fedquilt_common.types import Arrays, ClientId, Examples

_SIZE: Final = (1.0, 1e12)


@dataclass(frozen=True)
class FedReb(FedAvg):
    """``threshold``: samples of each class in the rebalanced data set, by a rule over the classes that the client has,
    or as a number; ``rounding`` of the mean and the median; ``distinct``: the second-least count is not the least.

    ``augmentation``: how classes are filled up; ``auto`` goes by the shape of the samples. ``head_weights``: what heads
    are averaged by; ``original`` is the plain aggregation of table 5.3. ``freeze_head``: without, H1 learns in phase 1
    too (algorithm 2, line 11). ``order``: all epochs of phase 1 before those of phase 2, or one of each in turn.
    """

    declares: ClassVar[Declaration] = Declaration(holdout=0.25)

    head_layers: int = 2
    threshold: Rule | int = "mean"
    rounding: Rounding = "half-up"
    distinct: bool = True
    augmentation: Literal["auto", "five-step", "autoaugment", "time-series", "tabular", "repeat"] = "auto"
    head_weights: Literal["effective", "rebalanced", "original"] = "effective"
    freeze_head: bool = True
    order: Literal["phases", "epochs"] = "phases"

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)
        check_threshold(self.threshold)

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        head_names(ctx.anatomy, self.head_layers)
        return State(model)

    def ask(self, state: State, ctx: ServerContext) -> Task:
        return Task("train", state.arrays, metrics={"effective": _SIZE, "rebalanced": _SIZE})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        head = head_names(ctx.anatomy, self.head_layers)
        base = {name: state.arrays[name] for name in state.arrays if name not in head}
        averaged = mean(replies, like=base)
        weighed = {client: replace(r, weight=self.head_weight(r)) for client, r in replies.items()}
        averaged |= mean(weighed, like={name: state.arrays[name] for name in state.arrays if name in head})
        return State({name: averaged[name] for name in state.arrays})

    def head_weight(self, reply: Reply) -> float:
        """What a client's head counts in the average."""
        return reply.weight if self.head_weights == "original" else reply.metrics[self.head_weights]

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        balanced = self.rebalance(ctx)
        arranged = add_second_head(task.arrays, client_head(task.arrays, ctx, self.head_layers))
        phases = self.phases(ctx.data, balanced.examples, arranged, head_names(ctx.anatomy, self.head_layers))
        epochs = ctx.learner.epochs
        schedule = [0] * epochs + [1] * epochs if self.order == "phases" else [0, 1] * epochs
        heads = TwoHeads(self.head_layers)
        trained = ctx.learner.train_in_turn(arranged, phases, schedule, seed=ctx.seed, part=heads)
        model, own = split_second_head(trained.arrays)
        ctx.memory.update(own)
        sizes = {"effective": float(balanced.effective), "rebalanced": float(len(balanced.examples))}
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, **sizes}
        return Reply(model, len(ctx.data), metrics)

    def rebalance(self, ctx: ClientContext) -> RebalancedExamples:
        """The client's rebalanced data set, the same in every round."""
        from fedquilt_common.augment import augmentation

        threshold = threshold_of(class_counts(ctx), self.threshold, self.rounding, distinct=self.distinct)
        change = augmentation(self.augmentation, ctx.data.x)
        return rebalance_examples(ctx.data, threshold, change, np.random.default_rng(ctx.lasting_seed))

    def phases(
        self, original: Examples, balanced: Examples, arranged: Arrays, head: frozenset[str]
    ) -> list[TrainingPhase]:
        """Algorithm 2: what each of the two optimisers updates, and from which loss."""
        of_shared = {whole(name) for name in head}
        first = arranged.keys() - of_shared if self.freeze_head else arranged.keys()
        second = {name for name in arranged if not name.startswith(f"{SECOND}.")}
        return [TrainingPhase(original, together, only=first), TrainingPhase(balanced, shared, only=second)]

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        of_shared, of_own = predict_with_both_heads(arrays, ctx, self.head_layers)
        return evaluation_reply(ctx.test.y, of_shared, of_shared + of_own)


def together(outputs: Any, targets: Any) -> Any:
    """H1 and H2 answer as one."""
    return cross_entropy(outputs[0] + outputs[1], targets)


def shared(outputs: Any, targets: Any) -> Any:
    """H1 answers alone."""
    return cross_entropy(outputs[0], targets)
