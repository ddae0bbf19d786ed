"""ScaleFL: sub-models are cut in width and in depth; their early exits learn from the deepest one.

Ilhan et al., "ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients", CVPR 2023: two-dimensional
scaling (section 3.2) and self-distillation between the exits (section 3.3), with the distillation on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithm_api.pooling import SUB_MODELS
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.selection import DEFAULT_WIDTHS, Widths, check_widths, kinds_by_width, level_of, prefix
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId

_NAMED: Final = re.compile(r"(?:^|\.)(stages|exits)\.(\d+)\.")


@dataclass(frozen=True)
class ScaleFL:
    """Sub-models of fewer channels and fewer exits.

    The model needs as many exits as the strongest board trains, such as ``model: {name: convnet, exits: [0, 1]}``.

    Attributes:
        widths: kind of board to share of the channels, above 0 and at most 1.
        exits: kind of board to number of exits that it trains, from the shallow end, 1 or more.
        temperature: of the distillation, above 0.
        distillation: share of an exit's loss that it learns from the deepest exit, in [0, 1].
    """

    declares: ClassVar[Declaration] = Declaration(
        tasks=frozenset({"classification", "regression"}), privacy="", pooled=SUB_MODELS
    )

    widths: Widths = field(default_factory=lambda: dict(DEFAULT_WIDTHS))
    exits: Mapping[str, int] = field(default_factory=lambda: {"strong": 3, "medium": 2, "weak": 1})
    temperature: float = 3.0
    distillation: float = 0.5

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        complete = isinstance(self.exits, Mapping) and self.exits.keys() == self.widths.keys()
        if not complete or any(type(count) is not int or count < 1 for count in self.exits.values()):
            raise ValueError(f"exits = {self.exits!r}: give each kind of `widths` its number of exits, 1 or more")
        if not 0 < self.temperature < float("inf") or not 0 <= self.distillation <= 1:
            raise ValueError("temperature must be positive, and distillation between 0 and 1")

    def part(self, anatomy: Anatomy, kind: str) -> Slice:
        """Return the sub-model of a kind of board: the first channels (floor), and the stages up to its last exit.

        Raises:
            SliceError: the model has fewer exits than the strongest boards train.
        """
        count = max(1, len(anatomy.exits_after))
        if count < max(self.exits.values()):
            raise SliceError(
                f"algorithm.exits: the strongest boards train {max(self.exits.values())} exits, but the model has "
                f"{count}; give it early exits, such as model: {{name: convnet, exits: [0, 1]}}"
            )
        wide = prefix(anatomy, self.widths[kind], "floor")
        return Slice(anatomy, wide.kept, absent_arrays(anatomy, self.exits[kind]))

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        for kind in self.widths:
            self.part(ctx.anatomy, kind)
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        kinds = {client: self._kind(client, ctx) for client in sorted(ctx.select())}
        parts = {kind: self.part(ctx.anatomy, kind) for kind in set(kinds.values())}
        replies = yield {client: Task("train", state.arrays, slice=parts[kind]) for client, kind in kinds.items()}
        updates = {
            client: SubModelUpdate(reply.arrays, parts[kinds[client]], reply.weight)
            for client, reply in replies.items()
        }
        trained = {str(client): kinds[client] for client in sorted(replies)}
        used = {client: update.part for client, update in updates.items()}
        return State(aggregate(state.arrays, updates), report={"trained": trained}, parts=used)

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        loss = self.loss if ctx.learning_task.name == "classification" else None
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, loss=loss, part=task.slice)
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        levels = [(kind, self.part(ctx.anatomy, kind)) for kind in kinds_by_width(self.widths)]
        return evaluate_levels(state.arrays, ctx, levels)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the exits' cross entropy, deeper exits weighing more, mixed with the divergence from the deepest exit.

        Exit j of n (from 0) weighs (j + 1) / sum. The divergence is Kullback-Leibler's at temperature T, times T
        squared, the mean over the samples.

        Args:
            outputs: logits of shape (n, classes), or one such tensor for each exit, the deepest last.
            targets: classes of shape (n,).
        """
        from torch.nn import functional

        exits = outputs if isinstance(outputs, list) else [outputs]
        total = len(exits) * (len(exits) + 1) / 2
        teacher = functional.softmax(exits[-1].detach() / self.temperature, dim=1)
        value: Any = 0.0
        for place, logits in enumerate(exits):
            term = functional.cross_entropy(logits, targets)
            if place < len(exits) - 1:
                student = functional.log_softmax(logits / self.temperature, dim=1)
                divergence = functional.kl_div(student, teacher, reduction="batchmean") * self.temperature**2
                term = (1 - self.distillation) * term + self.distillation * divergence
            value = value + term * (place + 1) / total
        return value

    def _kind(self, client: ClientId, ctx: ServerContext) -> str:
        return level_of(ctx.fleet[client].kind, kinds_by_width(self.widths))


def absent_arrays(anatomy: Anatomy, exits: int) -> frozenset[str]:
    """Return the names of the arrays that a sub-model lacks: later exits, and the stages after its last exit.

    Args:
        anatomy: of the whole model.
        exits: number of exits of the sub-model.
    """
    if not anatomy.exits_after:
        return frozenset()  # a model with one classifier
    last = anatomy.exits_after[exits - 1]
    return frozenset(
        name for name in anatomy.arrays if _position(name, "exits") >= exits or _position(name, "stages") > last
    )  # fmt: skip


def _position(name: str, container: str) -> int:
    """Return the number of the stage or exit that an array belongs to; -1 for none."""
    match = _NAMED.search(name)
    return int(match[2]) if match and match[1] == container else -1
