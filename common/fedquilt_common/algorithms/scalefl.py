"""ScaleFL: sub-models are cut in width and in depth; their early exits learn from the deepest one.

Ilhan et al., "ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients", CVPR 2023: two-dimensional
scaling (section 3.2) and self-distillation between the exits (section 3.3). Its published code has another loss and
leaves the distillation out by default; ``method`` chooses between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Literal

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate
from fedquilt_common.aggregation.client_evaluation import EVALUATE, count_locally, evaluate_locally
from fedquilt_common.algorithm_api import ClientContext, Declaration, Loss, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithm_api.pooling import SUB_MODELS
from fedquilt_common.algorithm_api.training_settings import OWN_LOSSES
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.errors import SliceError
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.submodels.selection import DEFAULT_WIDTHS, Widths, check_widths, kinds_by_width, level_of, prefix
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId

DISTIL: Final = "distil"
"""Scalar of a task: whether its exits learn from the deepest one."""
_NAMED: Final = re.compile(r"(stages|exits)\.(\d+)\.")


@dataclass(frozen=True)
class ScaleFL:
    """Sub-models of fewer channels and fewer exits.

    The model needs as many exits as the strongest board trains, such as ``model: {name: convnet, exits: [0, 1]}``.

    Attributes:
        widths: kind of board to share of the channels, above 0 and at most 1.
        exits: kind of board to number of exits that it trains, from the shallow end, 1 or more.
        temperature: of the distillation, above 0.
        distillation: gamma in [0, 1], the weight of what an exit learns from the deepest one.
        method: ``paper``: (1 - gamma) times cross entropy plus gamma times the divergence, from the first round on.
            ``code``: cross entropy plus gamma times the divergence, which is the mean over samples and classes, after
            the first quarter of the rounds.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        coordinator_tests=True,
        tasks=frozenset({"classification", "regression"}),
        privacy="",
        pooled=SUB_MODELS,
        sub_models="averaged",
        private_memory=False,
        public=False,
    )

    widths: Widths = field(default_factory=lambda: dict(DEFAULT_WIDTHS))
    exits: Mapping[str, int] = field(default_factory=lambda: {"strong": 3, "medium": 2, "weak": 1})
    temperature: float = 3.0
    distillation: float = 0.5
    method: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        check_exits(self.exits, self.widths)
        if not 0 < self.temperature < float("inf"):
            raise ValueError("temperature must be a positive number")
        if not 0 <= self.distillation <= 1:
            raise ValueError("distillation must be from 0 to 1")

    def part(self, anatomy: Anatomy, kind: str) -> Slice:
        """Return the sub-model of a kind of board: the first channels (floor), and the stages up to its last exit.

        Raises:
            SliceError: the model has fewer or more exits than the strongest boards train.
        """
        count, most = max(1, len(anatomy.exits_after)), max(self.exits.values())
        if count < most:
            raise SliceError(
                f"algorithm.exits: the strongest boards train {most} exits, but the model has {count}; give the model "
                f"{most - 1} early exits, such as model: {{name: convnet, exits: [0, 1]}} (in a model of your own, "
                "fedquilt.MultiExit), or lower algorithm.exits"
            )
        if count > most:
            raise SliceError(
                f"algorithm.exits: the model has {count} exits, but the strongest boards train {most}, so nobody "
                f"trains its last layers; let them train {count}, or remove exits from the model"
            )
        wide = prefix(anatomy, self.widths[kind], "floor")
        return Slice(anatomy, wide.kept, absent_arrays(anatomy, self.exits[kind]))

    def parts_to_try(self, anatomy: Anatomy) -> Sequence[Slice]:
        """Return the sub-model of each kind of board: a wider one may have fewer exits."""
        return [self.part(anatomy, kind) for kind in self.widths]

    def loss_problem(self, task: LearningTask) -> str:
        """Return why it cannot train a model that has a loss of its own."""
        return OWN_LOSSES

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        for kind in self.widths:
            self.part(ctx.anatomy, kind)
        return State(model)

    def round(self, state: State, ctx: ServerContext) -> Round:
        kinds = {client: self._kind(client, ctx) for client in sorted(ctx.select())}
        parts = {kind: self.part(ctx.anatomy, kind) for kind in set(kinds.values())}
        scalars = {DISTIL: self.distils(ctx.round, ctx.rounds)}
        replies = yield {
            client: Task("train", state.arrays, scalars, slice=parts[kind]) for client, kind in kinds.items()
        }
        updates = {
            client: SubModelUpdate(reply.arrays, parts[kinds[client]], reply.weight)
            for client, reply in replies.items()
        }
        trained = {str(client): kinds[client] for client in sorted(replies)}
        used = {client: update.part for client, update in updates.items()}
        merged = State(aggregate(state.arrays, updates), report={"trained": trained}, parts=used)
        return (yield from evaluate_locally(merged, ctx, self))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return count_locally(task, ctx)
        distil = bool(task.scalars.get(DISTIL, True))
        task_loss = ctx.learning_task.loss if ctx.learning_task.name == "regression" else None
        loss = partial(self.loss, distil=distil, task_loss=task_loss)
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, loss=loss, part=task.slice)
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        levels = [(kind, self.part(ctx.anatomy, kind)) for kind in kinds_by_width(self.widths)]
        return evaluate_levels(state.arrays, ctx, levels)

    def distils(self, round: int, rounds: int) -> bool:
        """Return whether the exits learn from the deepest one in a round of a run of ``rounds``."""
        return self.method == "paper" or round > rounds / 4

    def loss(self, outputs: Any, targets: Any, distil: bool = True, task_loss: Loss | None = None) -> Any:
        """Return the sum of the exits' losses, where exit j of n (from 0) weighs (j + 1) / sum.

        Args:
            outputs: logits of shape (n, classes), or one such tensor for each exit, the deepest last.
            targets: classes of shape (n,).
            distil: whether the exits learn from the deepest one.
            task_loss: of a regression, whose exits learn from the targets alone; None: classification.
        """
        exits = outputs if isinstance(outputs, list) else [outputs]
        total = len(exits) * (len(exits) + 1) / 2
        teacher = exits[-1].detach() if distil else None
        value: Any = 0.0
        for place, logits in enumerate(exits):
            own = teacher if place < len(exits) - 1 else None
            found = self._exit_loss(logits, targets, own) if task_loss is None else task_loss(logits, targets)
            value = value + found * (place + 1) / total
        return value

    def _exit_loss(self, logits: Any, targets: Any, teacher: Any) -> Any:
        """Return one exit's loss.

        The divergence is Kullback-Leibler's at temperature T, times T squared.

        Args:
            logits: of the exit, shape (n, classes).
            targets: classes of shape (n,).
            teacher: the deepest exit's logits, shape (n, classes); None: the exit does not learn from it.
        """
        from torch.nn import functional

        entropy = functional.cross_entropy(logits, targets)
        if teacher is None:
            return entropy
        student = functional.log_softmax(logits / self.temperature, dim=1)
        soft = functional.softmax(teacher / self.temperature, dim=1)
        divergence = functional.kl_div(student, soft, reduction="batchmean") * self.temperature**2
        if self.method == "code":
            return entropy + self.distillation * divergence / logits.shape[1]
        return (1 - self.distillation) * entropy + self.distillation * divergence

    def _kind(self, client: ClientId, ctx: ServerContext) -> str:
        return level_of(ctx.fleet[client].kind, kinds_by_width(self.widths))


def check_exits(exits: Mapping[str, int], widths: Widths) -> None:
    """Check that each kind of board has a number of exits.

    Args:
        exits: from a kind of board to its number of exits.
        widths: has the kinds of boards.

    Raises:
        ValueError: a kind has no number, or one that is not 1 or more, or no width.
    """
    if not isinstance(exits, Mapping) or any(type(count) is not int or count < 1 for count in exits.values()):
        raise ValueError(f"exits = {exits!r}: give each kind of board its number of exits, 1 or more")
    if missing := [kind for kind in widths if kind not in exits]:
        kinds = f"{', '.join(missing)}, which {'have' if len(missing) > 1 else 'has'} a width (algorithm.widths)"
        raise ValueError(f"exits = {dict(exits)!r}: gives no number of exits for {kinds}; add it")
    if unknown := [kind for kind in exits if kind not in widths]:
        raise ValueError(f"exits = {dict(exits)!r}: algorithm.widths gives no width for {', '.join(unknown)}; add it")


def absent_arrays(anatomy: Anatomy, exits: int) -> frozenset[str]:
    """Return the names of the arrays that a sub-model lacks: later exits, and the stages after its last exit.

    Args:
        anatomy: of the whole model.
        exits: number of exits of the sub-model.
    """
    if not anatomy.exits_after:
        return frozenset()  # a model with one classifier
    last = {"stages": anatomy.exits_after[exits - 1], "exits": exits - 1}
    places = {name: _find_place(anatomy, name) for name in anatomy.arrays}
    return frozenset(name for name, place in places.items() if place and place[1] > last[place[0]])


def _find_place(anatomy: Anatomy, name: str) -> tuple[str, int] | None:
    """Return whether an array belongs to the ``stages`` or the ``exits``, and to which of them; None for any other."""
    for owner in anatomy.exits_in:
        prefix = f"{owner}." if owner else ""
        if name.startswith(prefix) and (match := _NAMED.match(name, len(prefix))):
            return match[1], int(match[2])
    return None
