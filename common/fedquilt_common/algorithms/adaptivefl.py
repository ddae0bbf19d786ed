"""AdaptiveFL: clients receive random members of a model pool that they can probably train; boards prune further.

Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning for Resource-Constrained AIoT Systems", DAC 2024:
algorithm 1 (rounds and tables), algorithm 2 (aggregation), sections 3.2 (pruning) and 3.3 (rewards). The coordinator
learns about a board's resources only from the sub-models that it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate
from fedquilt_common.aggregation.client_evaluation import EVALUATE, count_locally, evaluate_locally
from fedquilt_common.algorithm_api import (
    ClientContext,
    Declaration,
    Reply,
    Round,
    ServerContext,
    ServerTools,
    State,
    Task,
)
from fedquilt_common.algorithm_api.pooling import SUB_MODELS
from fedquilt_common.algorithm_api.records import FITS, NOTHING_FITS
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.adaptivefl_pool import (
    LARGE,
    Member,
    Start,
    find_member,
    find_start,
    make_pool,
    nested_members,
)
from fedquilt_common.submodels.selection import check_widths
from fedquilt_common.submodels.slices import Anatomy, Slice, cut, relative_slice
from fedquilt_common.submodels.wholeness import require_groups
from fedquilt_common.types import Arrays, ClientId, Shapes

Selection = Literal["both", "curiosity", "resource", "random"]


@dataclass(frozen=True)
class AdaptiveFL:
    """A pool of sub-models, and tables of each client's successes; the defaults are Table 1's.

    Attributes:
        levels: width ratio r_w of each level below L, the whole model; without levels there is only the whole model.
        starts: the p different start layers I: 0-based numbers of layers that can be cut, none below ``tau``, or names
            of modules. None: those that the model declares; ``vgg16``, ``resnet18`` and ``mobilenet-v2`` do.
        tau: number of layers that all sub-models share.
        bonus: ``paper``: each success raises L1's score by p - 1. ``code``, as published: only L1's own success does,
            by p.
        selection: by which rewards clients are drawn: ``both``, only ``curiosity``, only ``resource``, or at
            ``random`` (the paper's AdaptiveFL+CS, +C, +S and +Random; figure 5).
        dispatch: a client is sent a ``random`` member, or always the ``largest`` (the paper's AdaptiveFL+Greed).
    """

    declares: ClassVar[Declaration] = Declaration(
        holdout=0.0,
        coordinator_tests=True,
        privacy="",
        pooled=SUB_MODELS,
        sub_models="averaged",
        private_memory=False,
        public=False,
    )

    levels: Mapping[str, float] = field(default_factory=lambda: {"M": 0.66, "S": 0.40})
    starts: Sequence[Start] | None = None
    tau: int = 1
    bonus: Literal["paper", "code"] = "paper"
    selection: Selection = "both"
    dispatch: Literal["random", "largest"] = "random"

    def __post_init__(self) -> None:
        if self.levels:
            check_widths("levels", self.levels)
        if LARGE in self.levels or max(self.levels.values(), default=0) >= 1:
            raise ValueError(f"levels = {dict(self.levels)!r}: L is the whole model; give only the levels below it")
        if len(set(self.levels.values())) < len(self.levels):
            raise ValueError(f"levels = {dict(self.levels)!r}: two levels are the same; give each a width of its own")
        starts = self.starts
        if starts is not None and (not starts or isinstance(starts, str) or not all(map(_is_start, starts))):
            raise ValueError(f"starts = {starts!r}: give the layers, by number from 0 or by name, where cutting begins")
        if self.tau < 0:
            raise ValueError(f"tau = {self.tau}: layers are numbered from 0")
        below = [start for start in starts or () if isinstance(start, int) and start < self.tau]
        if below:
            raise ValueError(
                f"starts = {list(starts or ())}: {below[0]} is below tau = {self.tau}; all sub-models share the layers "
                "before tau: choose a later start or a smaller tau"
            )

    def pool(self, anatomy: Anatomy) -> tuple[Member, ...]:
        """Return the model pool.

        Raises:
            SliceError: the model does not have such sub-models.
        """
        named = self.starts or anatomy.start_layers
        starts = [find_start(anatomy, start) for start in named]
        if self.levels and not starts:
            raise SliceError(
                "algorithm.starts is missing, and this model declares no start layers; give the layers from which on a "
                "level is cut, such as [2, 1]; `fedquilt model inspect` lists them"
            )
        if self.levels and (problem := self._starts_problem(named, starts)):
            raise SliceError(f"{problem}; `fedquilt model inspect` lists the layers")
        return make_pool(anatomy, self.levels, named)

    def _starts_problem(self, named: Sequence[Start], starts: Sequence[int]) -> str:
        """Return why the pool cannot begin to cut at these layers; empty if it can.

        Args:
            named: the start layers as the experiment gives them, or as the model declares them.
            starts: their numbers.
        """
        chosen = f"{list(named)}" + (f" (layers {list(starts)}, counted from 0)" if list(named) != list(starts) else "")
        if min(starts) < self.tau:
            return (
                f"algorithm.tau = {self.tau}: all sub-models share the layers before tau, but the start layers "
                f"{chosen} begin with layer {min(starts)}; choose a smaller tau, or later layers (algorithm.starts)"
            )
        return ""

    def find_level(self, name: str, ctx: ServerTools | ClientContext) -> Slice:
        """Return the pool's member of a name, such as M1 (``fleet.N.fits``).

        Raises:
            SliceError: the pool has no such member.
        """
        members = {member.name: member.part for member in self.pool(ctx.anatomy)}
        if name not in members:
            raise SliceError(f"fleet: fits = {name}: the pool has no such level; choose one of {', '.join(members)}")
        return members[name]

    def parts_to_try(self, anatomy: Anatomy) -> Sequence[Slice]:
        """Return the pool's smallest member."""
        return [min((member.part for member in self.pool(anatomy)), key=lambda part: part.entries)]

    # -- server ------------------------------------------------------------------------------------

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        require_groups(ctx.anatomy)
        size = len(self.pool(ctx.anatomy))
        return State(model, {
            "curiosity": np.ones((len(self.levels) + 1, ctx.clients), np.float32),
            "resources": np.ones((size, ctx.clients), np.float32),
        })  # fmt: skip

    def round(self, state: State, ctx: ServerContext) -> Round:
        pool = self.pool(ctx.anatomy)
        tables = Tables.from_state(state.extra, pool, self.bonus, self.selection)
        sent = dict(sorted(self._draw_members(tables, pool, ctx)))
        replies = yield _make_tasks(state.arrays, pool, sent)
        smaller = _find_smaller(pool, replies)
        retries = (yield _make_tasks(state.arrays, pool, smaller)) if smaller else {}
        latest = {**replies, **retries}
        returned = _find_returned(pool, {**sent, **smaller}, latest)
        for client in sorted(replies):
            tables.update(client, sent[client], returned.get(client))
        updates = {
            client: SubModelUpdate(latest[client].arrays, pool[member].part, latest[client].weight)
            for client, member in returned.items()
        }
        arrays = aggregate(state.arrays, updates) if updates else state.arrays
        all_sent = [*(sent[client] for client in replies), *(smaller[client] for client in retries)]
        used = {client: update.part for client, update in updates.items()}
        merged = State(arrays, tables.arrays, _report(pool, sent, returned, all_sent), parts=used)
        return (yield from evaluate_locally(merged, ctx, self))

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        largest = [member for member in reversed(self.pool(ctx.anatomy)) if member.name == f"{member.level}1"]
        return evaluate_levels(state.arrays, ctx, [(member.name, member.part) for member in largest])

    def _draw_members(
        self, tables: Tables, pool: Sequence[Member], ctx: ServerContext
    ) -> Iterator[tuple[ClientId, int]]:
        """Draw (client, member) pairs: members uniformly, then a client for each by its reward."""
        free = np.array(sorted(ctx.fleet))
        for _ in range(min(ctx.per_round, len(free))):
            member = int(ctx.rng.integers(len(pool))) if self.dispatch == "random" else len(pool) - 1
            place = int(ctx.rng.choice(len(free), p=tables.probabilities(pool[member].level, free)))
            yield int(free[place]), member
            free = np.delete(free, place)

    # -- client ------------------------------------------------------------------------------------

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        if task.kind == EVALUATE:
            return count_locally(task, ctx)
        pool = self.pool(ctx.anatomy)
        assert task.slice is not None  # noqa: S101 - every task of this algorithm has one
        for member in nested_members(pool, task.slice):
            part = pool[member].part
            if ctx.fits(part):
                arrays = cut(task.arrays, relative_slice(part, task.slice))
                trained = ctx.learner.train(arrays, ctx.data, seed=ctx.seed, part=part)
                metrics = {"loss": trained.loss, "train_seconds": trained.seconds}
                return Reply(trained.arrays, len(ctx.data), metrics)
        return Reply({}, 1.0, {FITS: _largest_fitting(pool, ctx)})


def _is_start(start: object) -> bool:
    return isinstance(start, int | str) and not isinstance(start, bool) and start != ""


def _largest_fitting(pool: Sequence[Member], ctx: ClientContext) -> int:
    by_size = sorted(range(len(pool)), key=lambda member: -pool[member].part.entries)
    return next((member for member in by_size if ctx.fits(pool[member].part)), NOTHING_FITS)


def _make_task(arrays: Arrays, pool: Sequence[Member], member: int) -> Task:
    """Return the task to train a member, or one nested in it; an empty reply reports that none of them fits."""
    nested = nested_members(pool, pool[member].part)
    allowed: list[Shapes] = [pool[inner].part.shapes for inner in nested]
    return Task("train", arrays, slice=pool[member].part, expect=(*allowed, {}))


def _make_tasks(arrays: Arrays, pool: Sequence[Member], members: Mapping[ClientId, int]) -> dict[ClientId, Task]:
    return {client: _make_task(arrays, pool, member) for client, member in members.items()}


def _find_smaller(pool: Sequence[Member], replies: Mapping[ClientId, Reply]) -> dict[ClientId, int]:
    """Return the members that boards report to fit instead of what they were sent; their replies have no arrays."""
    fitting = {client: _reported_member(reply, pool) for client, reply in replies.items() if not len(reply.arrays)}
    return {client: member for client, member in fitting.items() if member != NOTHING_FITS}


def _find_returned(
    pool: Sequence[Member], sent: Mapping[ClientId, int], replies: Mapping[ClientId, Reply]
) -> dict[ClientId, int]:
    """Return the members that clients have trained: what they were sent, or one nested in it."""
    return {
        client: find_member(pool, sent[client], reply.arrays)
        for client, reply in sorted(replies.items())
        if len(reply.arrays)
    }


def _reported_member(reply: Reply, pool: Sequence[Member]) -> int:
    """Return the member that a board reports to fit; ``NOTHING_FITS`` for anything outside the pool."""
    member = reply.metrics.get(FITS, NOTHING_FITS)
    return int(member) if member in range(len(pool)) else NOTHING_FITS


def _report(
    pool: Sequence[Member], sent: Mapping[ClientId, int], returned: Mapping[ClientId, int], all_sent: Sequence[int]
) -> dict[str, Any]:
    """Return the round's report; communication waste is 1 - sum of sizes returned / sum of sizes sent (section 4.4)."""
    size_sent = sum(pool[member].part.entries for member in all_sent)
    size_returned = sum(pool[member].part.entries for member in returned.values())
    return {
        "waste_rate": 1 - size_returned / size_sent if size_sent else 0.0,
        "trained": {str(client): pool[member].name for client, member in returned.items()},
        "sent": {str(client): pool[member].name for client, member in sent.items()},
    }


@dataclass(frozen=True)
class Tables:
    """The tables of algorithm 1, which ``update`` changes in place.

    Attributes:
        curiosity: T_c, float64 of shape (levels, clients).
        resources: T_r, float64 of shape (members, clients).
        levels: the level of each member of the pool.
        bonus: as in ``AdaptiveFL``.
        selection: as in ``AdaptiveFL``.
    """

    curiosity: NDArray[np.float64]
    resources: NDArray[np.float64]
    levels: tuple[str, ...]
    bonus: str
    selection: Selection = "both"

    @classmethod
    def from_state(cls, extra: Arrays, pool: Sequence[Member], bonus: str, selection: Selection) -> Tables:
        """Copy the tables of a state.

        Args:
            extra: ``curiosity`` of shape (levels, clients) and ``resources`` of shape (members, clients).
            pool: the model pool.
            bonus: as in ``AdaptiveFL``.
            selection: as in ``AdaptiveFL``.
        """
        curiosity, resources = (np.array(extra[name], np.float64) for name in ("curiosity", "resources"))
        return cls(curiosity, resources, tuple(member.level for member in pool), bonus, selection)

    @property
    def p(self) -> int:
        """Number of members of each level below L."""
        return max(1, (len(self.levels) - 1) // max(1, len(set(self.levels)) - 1))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tables for ``State.extra``: float32, in the same shapes."""
        return {"curiosity": self.curiosity.astype(np.float32), "resources": self.resources.astype(np.float32)}

    def _row(self, level: str) -> int:
        return list(dict.fromkeys(self.levels)).index(level)

    def update(self, client: ClientId, sent: int, returned: int | None) -> None:
        """Update a client's columns (algorithm 1, lines 12 to 26).

        Args:
            client: the client.
            sent: the member that it was sent.
            returned: the member that it returned; None: no member fits its board.
        """
        scores = self.resources[:, client]
        self.curiosity[self._row(self.levels[sent]), client] += 1
        if returned is None:  # the paper has no such case: treated as if even the smallest had been pruned away
            scores -= np.minimum(scores, np.arange(len(scores)) + 1)
            return
        self.curiosity[self._row(self.levels[returned]), client] += 1
        if sent == returned:
            scores[sent:] += 1
            if self.bonus == "paper":
                scores[-1] += self.p - 1
            elif sent == len(scores) - 1:
                scores[-1] += self.p
            return
        scores[returned] += self.p
        scores[returned:] = np.maximum(scores[returned:] - np.arange(len(scores) - returned), 0)

    def probabilities(self, level: str, clients: Sequence[ClientId] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return P(m, c), the probability that each client receives a member (section 3.3).

        Args:
            level: the member's level.
            clients: the clients to choose from.

        Returns:
            Float64 of shape (clients,), 1 in total; uniform where no client has a reward above 0.
        """
        rewards = self._rewards(level, np.asarray(clients))
        total = rewards.sum()
        return rewards / total if total > 0 else np.full(len(clients), 1 / len(clients))

    def _rewards(self, level: str, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the clients' rewards; a variant of figure 5 leaves out one factor, or both."""
        rewards = np.ones(len(clients))
        if self.selection in ("both", "resource"):
            rewards = self._resource_rewards(level, self.resources[:, clients])
        if self.selection in ("both", "curiosity"):
            rewards /= np.sqrt(self.curiosity[self._row(level), clients])
        return rewards

    def _resource_rewards(self, level: str, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the resource rewards; ``scores`` has the columns of T_r, shape (members, clients)."""
        upwards = np.cumsum(scores[::-1], axis=0)[::-1]  # for member k: the sum of the scores from k to L1
        of_level = [member for member, name in enumerate(self.levels) if name == level]
        totals = self.p * upwards[0]
        shares = np.divide(upwards[of_level].sum(axis=0), totals, out=np.zeros(len(totals)), where=totals > 0)
        return np.asarray(np.minimum(0.5, shares))
