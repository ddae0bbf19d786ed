"""AdaptiveFL: random members of a model pool go to the clients that most likely can train them; boards prune further.

Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning for Resource-Constrained AIoT Systems", DAC 2024:
algorithm 1 (rounds and tables), algorithm 2 (aggregation), sections 3.2 (pruning) and 3.3 (rewards). The coordinator
learns of a board's resources only from what comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.submodels.adaptivefl_pool import LARGE, Member, find_member, make_pool, nested_members
from fedquilt_common.submodels.selection import check_widths
from fedquilt_common.submodels.slices import cut, relative
from fedquilt_common.types import Arrays, ClientId, Shapes

FITS = "fits"
NOTHING_FITS = -1


@dataclass(frozen=True)
class AdaptiveFL:
    """``levels``: width ratio r_w of each level below L, ``starts``: start layers I_1 ... I_p (Table 1's defaults suit
    VGG16), none below ``tau``. Without levels there is only the whole model.

    ``bonus``: whether every success raises L1's score by p - 1 (``paper``), or only L1's own does, by p (``code``, as
    published).
    """

    declares: ClassVar[Declaration] = Declaration()

    levels: Mapping[str, float] = field(default_factory=lambda: {"M": 0.66, "S": 0.40})
    starts: Sequence[int] = (8, 6, 4)
    tau: int = 1
    bonus: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        if self.levels:
            check_widths("levels", self.levels)
        if LARGE in self.levels or max(self.levels.values(), default=0) >= 1:
            raise ValueError(f"levels = {dict(self.levels)!r}: L is the whole model; give only the levels below it")
        if not self.starts or any(type(s) is not int for s in self.starts) or len(set(self.starts)) < len(self.starts):
            raise ValueError(f"starts = {self.starts!r}: give the layers, counted from 0, from which on a level is cut")
        below = [start for start in self.starts if start < self.tau]
        if below:
            raise ValueError(
                f"starts = {list(self.starts)}: {below[0]} is below tau = {self.tau}; the layers before tau are shared "
                "by all sub-models: choose a later start or a smaller tau"
            )

    def pool(self, ctx: ServerContext | ClientContext) -> tuple[Member, ...]:
        """The model pool; raises SliceError when the model does not have such sub-models."""
        return make_pool(ctx.anatomy, self.levels, self.starts)

    # -- server ------------------------------------------------------------------------------------

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        size = len(self.pool(ctx))
        return State(model, {
            "curiosity": np.ones((len(self.levels) + 1, ctx.clients), np.float32),
            "resources": np.ones((size, ctx.clients), np.float32),
        })  # fmt: skip

    def round(self, state: State, ctx: ServerContext) -> Round:
        pool = self.pool(ctx)
        tables = Tables.of(state.extra, pool, len(self.starts), self.bonus)
        sent = dict(sorted(self._dispatched(tables, pool, ctx)))
        replies = yield {client: _task(state.arrays, pool, place) for client, place in sent.items()}
        refused = {client: _fitting(reply, pool) for client, reply in replies.items() if not len(reply.arrays)}
        smaller = {client: place for client, place in refused.items() if place != NOTHING_FITS}
        again = (yield {c: _task(state.arrays, pool, p) for c, p in smaller.items()}) if smaller else {}
        answers = {**{c: (sent[c], r) for c, r in replies.items()}, **{c: (smaller[c], r) for c, r in again.items()}}
        back = {c: find_member(pool, nested_members(pool, pool[place].part), reply.arrays)
                for c, (place, reply) in sorted(answers.items()) if len(reply.arrays)}  # fmt: skip
        for client in sorted(replies):
            tables.update(client, sent[client], back.get(client))
        pieces = {
            c: SubModelUpdate(answers[c][1].arrays, pool[place].part, answers[c][1].weight) for c, place in back.items()
        }
        arrays = aggregate(state.arrays, pieces) if pieces else state.arrays
        everything = [*(sent[c] for c in replies), *(smaller[c] for c in again)]
        return State(arrays, tables.arrays, _report(pool, sent, back, everything))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        first = [m for m in reversed(self.pool(ctx)) if m.name.endswith("1")]
        return evaluate_levels(state.arrays, ctx, [(member.name, member.part) for member in first])

    def _dispatched(self, tables: Tables, pool: Sequence[Member], ctx: ServerContext) -> Iterator[tuple[ClientId, int]]:
        """(client, member) pairs: members are drawn uniformly, then a client for each by its reward."""
        left = sorted(ctx.fleet)
        for _ in range(min(ctx.per_round, len(left))):
            place = int(ctx.rng.integers(len(pool)))
            client = left[int(ctx.rng.choice(len(left), p=tables.probabilities(pool[place].level, left)))]
            left.remove(client)
            yield client, place

    # -- client ------------------------------------------------------------------------------------

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        pool = self.pool(ctx)
        assert task.slice is not None  # noqa: S101 - every task of ours has one
        for place in nested_members(pool, task.slice):
            member = pool[place].part
            if ctx.fits(member):
                arrays = cut(task.arrays, relative(member, task.slice))
                trained = ctx.learner.train(arrays, ctx.data, seed=ctx.seed, part=member)
                metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
                return Reply(trained.arrays, len(ctx.data), metrics)
        return Reply({}, 1.0, {FITS: _largest_fitting(pool, ctx)})


def _largest_fitting(pool: Sequence[Member], ctx: ClientContext) -> int:
    kinds_by_width = sorted(range(len(pool)), key=lambda place: -pool[place].part.entries)
    return next((place for place in kinds_by_width if ctx.fits(pool[place].part)), NOTHING_FITS)


def _task(arrays: Arrays, pool: Sequence[Member], place: int) -> Task:
    """Train the member or one nested in it; an empty reply says that none of them fits."""
    nested = nested_members(pool, pool[place].part)
    allowed: list[Shapes] = [pool[inner].part.shapes for inner in nested]
    return Task("train", arrays, slice=pool[place].part, expect=(*allowed, {}))


def _fitting(reply: Reply, pool: Sequence[Member]) -> int:
    """The member that a board says it can train; whatever is none of the pool counts as nothing."""
    said = reply.metrics.get(FITS, NOTHING_FITS)
    return int(said) if said in range(len(pool)) else NOTHING_FITS


def _report(
    pool: Sequence[Member], sent: Mapping[ClientId, int], back: Mapping[ClientId, int], everything: Sequence[int]
) -> dict[str, Any]:
    """Communication waste is 1 - sum of sizes sent back / sum of sizes sent (section 4.4)."""
    out = sum(pool[place].part.entries for place in everything)
    home = sum(pool[place].part.entries for place in back.values())
    return {
        "waste_rate": 1 - home / out if out else 0.0,
        "trained": {str(client): pool[place].name for client, place in back.items()},
        "sent": {str(client): pool[place].name for client, place in sent.items()},
    }


@dataclass(frozen=True)
class Tables:
    """The curiosity table T_c, shape (levels, clients), and the resource table T_r, shape (members, clients)."""

    curiosity: NDArray[np.float64]
    resources: NDArray[np.float64]
    levels: tuple[str, ...]
    """The level of each member."""
    p: int
    bonus: str

    @classmethod
    def of(cls, extra: Arrays, pool: Sequence[Member], p: int, bonus: str) -> Tables:
        """Copies of the state's tables, to be changed."""
        curiosity, resources = (np.array(extra[name], np.float64) for name in ("curiosity", "resources"))
        return cls(curiosity, resources, tuple(member.level for member in pool), p, bonus)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """For the state."""
        return {"curiosity": self.curiosity.astype(np.float32), "resources": self.resources.astype(np.float32)}

    def _row(self, level: str) -> int:
        return list(dict.fromkeys(self.levels)).index(level)

    def update(self, client: ClientId, sent: int, back: int | None) -> None:
        """Lines 12 to 26 of algorithm 1; ``back`` None: the board could train no member at all."""
        scores = self.resources[:, client]
        self.curiosity[self._row(self.levels[sent]), client] += 1
        if back is None:  # the paper has no such case: as if even the smallest had been pruned away
            scores -= np.minimum(scores, np.arange(len(scores)) + 1)
            return
        self.curiosity[self._row(self.levels[back]), client] += 1
        if sent == back:
            scores[sent:] += 1
            if self.bonus == "paper":
                scores[-1] += self.p - 1
            elif sent == len(scores) - 1:
                scores[-1] += self.p
            return
        scores[back] += self.p
        scores[back:] = np.maximum(scores[back:] - np.arange(len(scores) - back), 0)

    def probabilities(self, level: str, clients: Sequence[ClientId]) -> NDArray[np.float64]:
        """P(m, c) for ``clients`` (section 3.3); uniform where nobody has any reward left."""
        rewards = np.array([self._reward(level, client) for client in clients])
        total = rewards.sum()
        return rewards / total if total > 0 else np.full(len(clients), 1 / len(clients))

    def _reward(self, level: str, client: ClientId) -> float:
        scores = self.resources[:, client]
        upwards = np.cumsum(scores[::-1])[::-1]  # of member k: the scores of all from k to L1
        of_level = sum(upwards[place] for place, name in enumerate(self.levels) if name == level)
        resource = of_level / (self.p * scores.sum()) if scores.sum() > 0 else 0.0
        return float(min(0.5, resource) / np.sqrt(self.curiosity[self._row(level), client]))
