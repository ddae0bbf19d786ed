"""Partial training, shared by HeteroFL, FedRolex and Federated Dropout: clients train sub-models, entries are averaged.

FedRolex thesis (Alam, 2023), algorithms 3.1 to 3.3 and equation 3.10. The algorithms differ in the channels that a
client trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate
from fedquilt_common.aggregation.client_evaluation import EVALUATE, count_locally, evaluate_locally
from fedquilt_common.aggregation.exact_numbers import BITS, to_bits
from fedquilt_common.aggregation.norm_statistics import pool_statistics
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Loss,
    OutputViews,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    deepest_exit,
)
from fedquilt_common.algorithm_api.pooling import SUB_MODELS
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.submodels.selection import (
    DEFAULT_WIDTHS,
    Widths,
    check_widths,
    cut_only,
    kinds_by_width,
    level_of,
    prefix,
)
from fedquilt_common.submodels.slices import Anatomy, Slice, full_slice
from fedquilt_common.submodels.wholeness import require_groups
from fedquilt_common.training.losses import deepest_output
from fedquilt_common.types import Arrays, ClientId, Shapes

HELD_CLASSES: Final = ".classes"
"""Name of the reply's array that marks the classes of the client's samples: 1 or 0, float32 of shape (classes,)."""


@dataclass(frozen=True)
class PartialTraining(ABC):
    """Each client trains a sub-model of the width of its board.

    Attributes:
        widths: kind of board to share of the channels, above 0 and at most 1. Kinds that are not listed train the
            smallest.
        mask_absent_classes: the logits of classes without samples are 0 in a client's loss and where it tests the
            global model, and its classifier rows of these classes are not averaged.
        statistics: the rounds after which all connected clients, drawn or not, collect the statistics of static batch
            norms over the whole model. Between them, evaluation uses the statistics of the test batches.
        cut: patterns for the names of the channel groups that are cut, such as ``*.attention``; the others stay whole.
            Empty: all are cut.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        coordinator_tests=True,
        pooled=SUB_MODELS,
        sub_models="averaged",
        private_memory=False,
        public=False,
        measures_norms=True,
    )

    widths: Widths = field(default_factory=lambda: dict(DEFAULT_WIDTHS))
    mask_absent_classes: bool = True
    statistics: Literal["never", "last", "each"] = "last"
    cut: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        if isinstance(self.cut, str) or not all(isinstance(pattern, str) and pattern for pattern in self.cut):
            raise ValueError(f"cut = {self.cut!r}: give a list of patterns for names, such as ['*.attention']")

    @abstractmethod
    def part(self, ctx: ServerContext, width: float) -> Slice:
        """Return the sub-model of one client in this round."""

    def level_part(self, ctx: ServerContext, width: float) -> Slice:
        """Return the sub-model of a width that is evaluated; by default that of this round."""
        return self.part(ctx, width)

    def update_weight(self, reply: Reply, part: Slice) -> float:
        """Return the weight of a client's entries in the average: equal for all (equation 3.10)."""
        return 1.0

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        require_groups(ctx.anatomy)  # refuses a model that cannot be cut before the run starts
        self.restrict(full_slice(ctx.anatomy))
        self._check_masks(ctx)
        return State(model)

    def _masks(self, task: LearningTask) -> bool:
        return self.mask_absent_classes and task.held_classes(np.zeros(1, np.int64)) is not None

    def _check_masks(self, ctx: ServerContext) -> None:
        if not output_count(ctx.anatomy) and self._masks(ctx.learning_task):
            raise UncuttableModelError(
                "algorithm.mask_absent_classes: no single array of the model has a row for each of its outputs, as "
                "where forward concatenates several heads, so absent classes cannot be masked; set it to false"
            )

    def round(self, state: State, ctx: ServerContext) -> Round:
        parts = self._parts(ctx)
        tasks = {client: Task("train", state.arrays, slice=part, expect=self._expected_shapes(part))
                 for client, part in parts.items()}  # fmt: skip
        replies = yield tasks
        updates = {client: self._update(reply, parts[client]) for client, reply in replies.items()}
        arrays: Arrays = aggregate(state.arrays, updates)
        if self._collects_statistics(ctx):
            arrays = yield from self._collect_statistics(arrays, ctx)
        trained = {str(client): self._width_of(client, ctx) for client in sorted(replies)}
        used = {client: parts[client] for client in replies}
        merged = State(arrays, state.extra, {"trained": trained}, parts=used)
        return (yield from evaluate_locally(merged, ctx, self))

    def privacy_problem(self) -> str:
        """Return why it cannot train with differential privacy; empty if it can."""
        return (
            "replies may name the client's classes; with `mask_absent_classes: false` they do not"
            * self.mask_absent_classes
        )

    def loss_problem(self, task: LearningTask) -> str:
        """Return why it cannot train a model that has a loss of its own; empty if it can."""
        return self._masks(task) * (
            "only the loss of the learning task can leave out absent classes, not the model's training_loss; set "
            "algorithm.mask_absent_classes: false"
        )

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == "statistics":
            measured = ctx.learner.statistics(task.arrays, ctx.data)
            return Reply({name: to_bits(x) for name, x in measured.items()}, len(ctx.data))
        held = ctx.learning_task.held_classes(ctx.data.y) if self.mask_absent_classes else None
        if task.kind == EVALUATE:
            return count_locally(task, ctx, deepest_exit if held is None else masked_views(held))
        loss = None if held is None else masked_loss(held, ctx.learning_task.loss)
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, loss=loss, part=task.slice)
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, "steps": trained.steps}
        arrays = {**trained.arrays, **({} if held is None else {HELD_CLASSES: held.astype(np.float32)})}
        return Reply(arrays, len(ctx.data), metrics)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        parts = {kind: self.level_part(ctx, self.widths[kind]) for kind in kinds_by_width(self.widths)}
        return evaluate_levels(state.arrays, ctx, [(kind, self.restrict(part)) for kind, part in parts.items()])

    def _width_of(self, client: ClientId, ctx: ServerContext) -> float:
        return self.widths[level_of(ctx.fleet[client].kind, kinds_by_width(self.widths))]

    def _parts(self, ctx: ServerContext) -> dict[ClientId, Slice]:
        widths = {client: self._width_of(client, ctx) for client in sorted(ctx.select())}
        return {client: self.restrict(self.part(ctx, width)) for client, width in widths.items()}

    def parts_to_try(self, anatomy: Anatomy) -> Sequence[Slice]:
        """Return the narrowest sub-model, of the first channels of each group."""
        width = min(self.widths.values())
        return [self.restrict(prefix(anatomy, width, getattr(self, "rounding", "floor")))]

    def restrict(self, part: Slice) -> Slice:
        """Return the sub-model that is cut only where ``cut`` allows.

        Raises:
            SliceError: a pattern matches no channel group.
        """
        return cut_only(part, self.cut) if self.cut else part

    def _expected_shapes(self, part: Slice) -> tuple[Shapes, ...]:
        """Return the shapes of a reply with ``HELD_CLASSES``, and of one without, for data sets without classes."""
        if not self.mask_absent_classes:
            return (part.shapes,)
        return ({**part.shapes, HELD_CLASSES: (output_count(part.anatomy),)}, part.shapes)

    def _update(self, reply: Reply, part: Slice) -> SubModelUpdate:
        held = np.asarray(reply.arrays[HELD_CLASSES]) > 0 if HELD_CLASSES in reply.arrays else None
        return SubModelUpdate(reply.arrays, part, self.update_weight(reply, part), held)

    def _collects_statistics(self, ctx: ServerContext) -> bool:
        due = self.statistics == "each" or (self.statistics == "last" and ctx.round == ctx.rounds)
        return due and bool(ctx.anatomy.statistics)

    def _collect_statistics(
        self, arrays: Arrays, ctx: ServerContext
    ) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], Arrays]:
        """Run the sBN pass (HeteroFL, section 3) as an exchange with all connected clients: no sample leaves one.

        The statistics travel as their bits: a mean in half precision would change a small variance beside it.
        """
        anatomy = ctx.anatomy
        shapes = {name: anatomy.arrays[name].shape for name in anatomy.statistics}
        task = Task("statistics", arrays, expect=shapes, dtypes=dict.fromkeys(shapes, BITS))
        replies = yield dict.fromkeys(sorted(ctx.fleet), task)
        return {**arrays, **pool_statistics(replies, anatomy)}


def output_count(anatomy: Anatomy) -> int:
    """Return the number of the model's outputs; 0 if no array runs over them."""
    return next((a.shape[a.outputs] for a in anatomy.arrays.values() if a.outputs is not None), 0)


def masked_loss(held: NDArray[np.bool_], loss: Loss) -> Loss:
    """Return a loss in which the logits of absent classes are 0 (not minus infinity).

    Args:
        held: the classes of which the client has samples, shape (classes,).
        loss: takes logits whose last dimension runs over the classes.
    """

    def masked(outputs: Any, targets: Any) -> Any:
        import torch

        logits = deepest_output(outputs)
        absent = torch.from_numpy(~held).to(logits.device)
        return loss(logits.masked_fill(absent, 0.0), targets)

    return masked


def masked_views(held: NDArray[np.bool_]) -> OutputViews:
    """Return what tests a model's deepest exit with the logits of absent classes as 0, as FedRolex's code does.

    Args:
        held: the classes of which the client has training samples, shape (classes,).
    """
    return lambda outputs: [np.where(held, logits, np.float32(0)) for logits in deepest_exit(outputs)]
