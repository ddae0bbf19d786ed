"""FedReb and FedROD with what the FedReb thesis leaves open or rules out.

``benchmarks/fedreb_small.yaml`` measures them; run it with ``PYTHONPATH=benchmarks``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.rebalance import RebalancedExamples, class_threshold, rebalance_examples
from fedquilt_common.algorithm_api import ClientContext, Loss, Reply, Task, TrainingPhase
from fedquilt_common.algorithms.fedreb import FedReb, shared_head_loss
from fedquilt_common.algorithms.fedrod import FedROD
from fedquilt_common.augment.images import five_steps
from fedquilt_common.submodels.heads import pick_arrays
from fedquilt_common.training.losses import class_counts, cross_entropy
from fedquilt_common.types import Arrays, Examples


@dataclass(frozen=True)
class FedRebVariant(FedReb):
    """FedReb with more options.

    Attributes:
        first_head: a client's first private head. ``initial``: the run's initial head, as in section 4.3 of the thesis;
            ``received``: the shared head of the first task that the client trains.
        strength: factor of the crop, the angles, the jitter, the shift and the scale of the 5-step augmentation; 1 is
            FedReb's.
        absent: classes of which the client has no samples, in the loss of the shared head. ``counted``: their logits
            are pushed down, as in the thesis; ``left-out``: they do not change, as in FedROD.
    """

    first_head: Literal["initial", "received"] = "initial"
    strength: float = 1.0
    absent: Literal["counted", "left-out"] = "counted"

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """Train as FedReb, from the chosen first head."""
        if self.first_head == "received" and not ctx.memory:
            ctx.memory.update(pick_arrays(task.arrays, ctx.learner.head(self.head_layers)))
        return super().train(task, ctx)

    def rebalance(self, ctx: ClientContext) -> RebalancedExamples:
        """Return FedReb's rebalanced data set, with changes of the chosen strength."""
        if self.strength == 1:
            return super().rebalance(ctx)
        threshold = class_threshold(class_counts(ctx), self.threshold, self.rounding, distinct=self.distinct)
        rng = np.random.default_rng(ctx.lasting_seed)
        return rebalance_examples(ctx.data, threshold, lambda x, rng: five_steps(x, rng, self.strength), rng)

    def phases(
        self, original: Examples, rebalanced: Examples, two_heads: Arrays, head: Collection[str]
    ) -> list[TrainingPhase]:
        """Return FedReb's phases, the second one with the chosen loss."""
        first, second = super().phases(original, rebalanced, two_heads, head)
        if self.absent == "left-out":
            second = replace(second, loss=held_classes_loss(np.unique(rebalanced.y)))
        return [first, second]


@dataclass(frozen=True)
class FedRODVariant(FedROD):
    """FedROD whose generic head counts classes in another way.

    Attributes:
        counts: of the client's samples of each class. ``all``: FedROD's; ``full-batches``: without the samples that do
            not fill the last batch of one pass, as PFLlib counts them; ``absent-too``: a class without samples has as
            many as the others on average, so that its logit is pushed down.
        batch: size of a batch in that pass.
    """

    counts: Literal["all", "full-batches", "absent-too"] = "all"
    batch: int = 20

    def loss(self, ctx: ClientContext) -> Loss:
        """Return FedROD's loss, with the chosen counts."""
        if self.counts == "all":
            return super().loss(ctx)
        if self.counts == "absent-too":
            generic_loss = prior_loss(fill_absent(class_counts(ctx)))
        else:
            rng = np.random.default_rng(ctx.lasting_seed)
            generic_loss = prior_loss(count_full_batches(ctx.data.y, self.batch, ctx.classes, rng))

        def sum_of_losses(outputs: Any, targets: Any) -> Any:
            generic, personal = outputs
            return generic_loss(generic, targets) + cross_entropy(generic.detach() + personal, targets)

        return sum_of_losses


def fill_absent(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return counts, shape (classes,), with the mean of the others in the place of zeros."""
    return np.where(counts > 0, counts, counts[counts > 0].mean())


def count_full_batches(labels: NDArray[Any], batch: int, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Count the labels of each class in one pass in random order, without those that do not fill the last batch.

    Args:
        labels: classes, shape (n,).
        batch: samples in a batch.
        classes: number of classes.
        rng: draws the order.
    """
    order = rng.permutation(len(labels))[: len(labels) // batch * batch]
    return np.bincount(labels[order].astype(np.int64), minlength=classes).astype(np.float64)


def prior_loss(counts: NDArray[np.float64]) -> Loss:
    """Return the balanced softmax of counts, shape (classes,); it stays finite for samples of a class with count 0."""

    def loss(outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs + outputs.new_tensor(np.log(np.maximum(counts, 1e-30))), targets)

    return loss


def held_classes_loss(held: NDArray[np.int64]) -> Loss:
    """Return FedReb's loss of the shared head over some of the classes; the others' logits get no gradient.

    Args:
        held: the classes that count, shape (n,).
    """

    def loss(outputs: Any, targets: Any) -> Any:
        classes = outputs[0].shape[1]
        mask = np.where(np.isin(np.arange(classes), held), 0.0, -np.inf)
        return shared_head_loss([outputs[0] + outputs[0].new_tensor(mask), outputs[1]], targets)

    return loss
