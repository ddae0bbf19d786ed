"""Decoupled: one model for each level, averaged only among the clients that train that level.

The baseline of Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning for Resource-Constrained AIoT
Systems", DAC 2024, section 4.2: FedAvg for L1, M1 and S1 of the model pool (Table 1), each on the data of the clients
that can train it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.client_evaluation import EVALUATE, count_locally, evaluate_locally
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.adaptivefl_pool import Start, cut_from, find_start
from fedquilt_common.submodels.selection import Widths, check_widths, kinds_by_width, level_of
from fedquilt_common.submodels.slices import Anatomy, Slice, cut
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class Decoupled:
    """FedAvg of one model for each level; the state's arrays are the whole model, ``extra`` has the smaller ones.

    The models of the levels start as sub-models of the same initial model.

    Attributes:
        widths: kind of board to width ratio of its level's model; the greatest must be 1, the global model. The
            defaults are Table 1's.
        start: layer from which on the smaller models are cut, by number from 0 or by name. None: the latest that the
            model declares (I of M1 and S1).
        data: the model that a client trains. ``affordable``: one drawn from all levels that fit its board, so that each
            level learns the data of all clients that can train it (the paper); ``own``: its own level's.
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        coordinator_tests=True,
        privacy="",
        pooled="each width has a mean of its own",
        sub_models="separate",
        private_memory=False,
        public=False,
    )

    widths: Widths = field(default_factory=lambda: {"strong": 1.0, "medium": 0.66, "weak": 0.40})
    start: Start | None = None
    data: Literal["affordable", "own"] = "affordable"

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        if max(self.widths.values()) != 1:
            raise ValueError(f"widths = {dict(self.widths)!r}: one level must have width 1, the whole model")

    def parts_to_try(self, anatomy: Anatomy) -> Sequence[Slice]:
        """Return the narrowest sub-model."""
        return [self._part(anatomy, min(self.widths.values()))]

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        smaller = {
            f"{level}/{name}": array
            for level, part in self._parts(ctx).items() if not part.is_full
            for name, array in cut(model, part).items()
        }  # fmt: skip
        return State(model, smaller)

    def round(self, state: State, ctx: ServerContext) -> Round:
        parts = self._parts(ctx)
        models = {level: self._model(state, level, part) for level, part in parts.items()}
        levels = {client: self._level(client, ctx) for client in sorted(ctx.select())}
        tasks = {level: Task("train", models[level], {"level": level}) for level in models}
        replies = yield {client: tasks[level] for client, level in levels.items()}
        for level in models:
            of_level = {client: reply for client, reply in replies.items() if levels[client] == level}
            models[level] = mean(of_level, like=models[level]) if of_level else models[level]
        trained = {str(client): self.widths[levels[client]] for client in sorted(replies)}
        state = self._state(models, parts, trained)
        merged = replace(state, apart={client: parts[levels[client]] for client in replies})
        return (yield from evaluate_locally(merged, ctx, self))

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return count_locally(task, ctx)
        part = self._part(ctx.anatomy, self.widths[str(task.scalars["level"])])
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, part=part)
        return Reply(trained.arrays, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        parts = self._parts(ctx)
        scores = {level: ctx.evaluate(self._model(state, level, part), part) for level, part in parts.items()}
        full = scores[kinds_by_width(self.widths)[0]]
        measure = ctx.learning_task.main.name
        named = {f"{measure}_{level}": score[measure] for level, score in scores.items()}
        return {**full, **named, f"average_{measure}": sum(named.values()) / len(named)}

    def _parts(self, ctx: ServerContext) -> dict[str, Slice]:
        return {level: self._part(ctx.anatomy, self.widths[level]) for level in kinds_by_width(self.widths)}

    def _part(self, anatomy: Anatomy, width: float) -> Slice:
        """Return the pool's member of this width; width 1 gives the whole model."""
        starts = anatomy.start_layers if self.start is None else (self.start,)
        if not starts and width < 1:
            raise SliceError("algorithm.start: the model declares no start layer; give one, such as 0 for all layers")
        latest = max((find_start(anatomy, start, "algorithm.start") for start in starts), default=0)
        return cut_from(anatomy, width, latest, "algorithm.widths")

    def _level(self, client: ClientId, ctx: ServerContext) -> str:
        """Return the level that a client trains in this round."""
        levels = kinds_by_width(self.widths)
        own = level_of(ctx.fleet[client].kind, levels)
        if self.data == "own":
            return own
        affordable = levels[levels.index(own) :]
        return affordable[int(ctx.rng.integers(len(affordable)))]

    def _model(self, state: State, level: str, part: Slice) -> Arrays:
        if part.is_full:
            return state.arrays
        return {name: state.extra[f"{level}/{name}"] for name in part.shapes}

    def _state(self, models: Mapping[str, Arrays], parts: Mapping[str, Slice], trained: dict[str, float]) -> State:
        whole = models[kinds_by_width(self.widths)[0]]
        extra: dict[str, NDArray[Any]] = {
            f"{level}/{name}": models[level][name]
            for level, part in parts.items() if not part.is_full
            for name in part.shapes
        }  # fmt: skip
        return State(whole, extra, {"trained": trained})
