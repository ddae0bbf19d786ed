"""ScaleFL: sub-models cut in width and in depth, whose early exits learn from the deepest one.

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
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.selection import DEFAULT_WIDTHS, Widths, check_widths, kinds_by_width, level_of, prefix
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId

_NAMED: Final = re.compile(r"(?:^|\.)(stages|exits)\.(\d+)\.")


@dataclass(frozen=True)
class ScaleFL:
    """``widths``: kind of board -> part of the channels; ``exits``: kind -> how many exits it trains, from the shallow
    end. ``temperature`` and ``distillation`` (0 to 1): of the exits' losses, the part that is learnt from the deepest.

    The model must have as many exits as the strongest trains, such as ``model: {name: convnet, exits: [0, 1]}``.
    """

    declares: ClassVar[Declaration] = Declaration()

    widths: Widths = field(default_factory=lambda: dict(DEFAULT_WIDTHS))
    exits: Mapping[str, int] = field(default_factory=lambda: {"strong": 3, "medium": 2, "weak": 1})
    temperature: float = 3.0
    distillation: float = 0.5

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        fine = isinstance(self.exits, Mapping) and self.exits.keys() == self.widths.keys()
        if not fine or any(type(count) is not int or count < 1 for count in self.exits.values()):
            raise ValueError(f"exits = {self.exits!r}: give each kind of `widths` how many exits it trains, 1 or more")
        if not 0 < self.temperature < float("inf") or not 0 <= self.distillation <= 1:
            raise ValueError("temperature must be positive, and distillation between 0 and 1")

    def part(self, anatomy: Anatomy, kind: str) -> Slice:
        """The sub-model of a kind of board: the first channels (floor), and the stages up to its last exit."""
        count = max(1, len(anatomy.exits_after))
        if count < max(self.exits.values()):
            raise SliceError(
                f"algorithm.exits: the strongest boards train {max(self.exits.values())} exits, but the model has "
                f"{count}; give it early exits, such as model: {{name: convnet, exits: [0, 1]}}"
            )
        wide = prefix(anatomy, self.widths[kind], "floor")
        return Slice(anatomy, wide.kept, beyond(anatomy, self.exits[kind]))

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        for kind in self.widths:
            self.part(ctx.anatomy, kind)
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        kinds = {client: self._kind(client, ctx) for client in sorted(ctx.select())}
        parts = {kind: self.part(ctx.anatomy, kind) for kind in set(kinds.values())}
        replies = yield {client: Task("train", state.arrays, slice=parts[kind]) for client, kind in kinds.items()}
        pieces = {
            client: SubModelUpdate(reply.arrays, parts[kinds[client]], reply.weight)
            for client, reply in replies.items()
        }
        trained = {str(client): kinds[client] for client in sorted(replies)}
        return State(aggregate(state.arrays, pieces), report={"trained": trained})

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        loss = self.loss if ctx.classes else None
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, loss=loss, part=task.slice)
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        levels = [(kind, self.part(ctx.anatomy, kind)) for kind in kinds_by_width(self.widths)]
        return evaluate_levels(state.arrays, ctx, levels)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy of every exit, deeper ones weighing more, and the divergence from the deepest exit.

        Exit j of n (from 0) weighs (j + 1) / sum; the divergence is KL at the temperature T, times T squared, the mean
        over the samples.
        """
        from torch.nn import functional

        exits = outputs if isinstance(outputs, list) else [outputs]
        total = len(exits) * (len(exits) + 1) / 2
        heat, teacher = self.temperature, functional.softmax(exits[-1].detach() / self.temperature, dim=1)
        value: Any = 0.0
        for place, logits in enumerate(exits):
            term = functional.cross_entropy(logits, targets)
            if place < len(exits) - 1:
                student = functional.log_softmax(logits / heat, dim=1)
                apart = functional.kl_div(student, teacher, reduction="batchmean") * heat**2
                term = (1 - self.distillation) * term + self.distillation * apart
            value = value + term * (place + 1) / total
        return value

    def _kind(self, client: ClientId, ctx: ServerContext) -> str:
        return level_of(ctx.fleet[client].kind, kinds_by_width(self.widths))


def beyond(anatomy: Anatomy, exits: int) -> frozenset[str]:
    """The arrays of all exits but the first ``exits``, and of the stages after the last of these."""
    if not anatomy.exits_after:
        return frozenset()  # a model with its one classifier
    last = anatomy.exits_after[exits - 1]
    return frozenset(
        name for name in anatomy.arrays if _number(name, "exits") >= exits or _number(name, "stages") > last
    )  # fmt: skip


def _number(name: str, what: str) -> int:
    """Which of the model's stages or exits an array belongs to; -1 if to none."""
    found = _NAMED.search(name)
    return int(found[2]) if found and found[1] == what else -1
