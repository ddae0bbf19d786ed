"""Exact sums: an algorithm whose rounds see a mean that does not depend on how the replies are grouped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import (
    Algorithm,
    ClientContext,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    advance_full_round,
    reply_weight,
)
from fedquilt_common.algorithm_api.reply_dtypes import reply_dtype
from fedquilt_common.algorithm_api.wrapper import AlgorithmWrapper
from fedquilt_common.errors import PayloadError
from fedquilt_common.partial_sums.exact_mean import GroupedReplies, exact_mean
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.types import Arrays, ClientId, Precision, Shapes
from fedquilt_common.wire.codec import from_wire, to_wire, wire_dtype


@dataclass(frozen=True)
class ExactRounds(AlgorithmWrapper):
    """An algorithm with exact sums around it; the clients send the weights of the mean.

    Attributes:
        inner: it reads of the replies with arrays only their mean.
        down: precision in which the clients receive arrays.
        grouped: whether replies may travel as partial sums.
    """

    down: Precision
    grouped: bool = True

    def round(self, state: State, ctx: ServerContext) -> Round:
        inner = self.inner.round(state, ctx)
        tasks = advance_full_round(inner, None)
        while not isinstance(tasks, State):
            asked = self._mark(tasks)
            replies = yield asked
            tasks = advance_full_round(inner, self._average(asked, replies))
        return tasks

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        return weigh_reply(self.inner, task, self.inner.work(task, ctx))

    def _mark(self, tasks: Mapping[ClientId, Task]) -> dict[ClientId, Task]:
        """Return the tasks, marked if their replies may travel as sums; tasks that were one object stay one."""
        different = {id(task): task for task in tasks.values()}
        made = {key: replace(task, summed=self.grouped and is_averaged(task)) for key, task in different.items()}
        return {client: made[id(task)] for client, task in tasks.items()}

    def _average(self, tasks: Mapping[ClientId, Task], replies: Mapping[ClientId, Reply]) -> Mapping[ClientId, Reply]:
        """Return the replies, with the mean in place of each that has arrays and is averaged."""
        are_averaged = {key: is_averaged(task) for key, task in {id(one): one for one in tasks.values()}.items()}
        averaged = {client: reply for client, reply in replies.items() if are_averaged[id(tasks[client])]}
        if not averaged:
            return replies
        task = tasks[min(averaged)]
        mean = exact_mean(self._group(averaged, tasks), _empty(task))
        equal = Reply(mean, 1.0, dict.fromkeys(task.metrics, 1.0), averaged[min(averaged)].asked)
        return {**replies, **dict.fromkeys(averaged, equal)}

    def _group(self, replies: Mapping[ClientId, Reply], tasks: Mapping[ClientId, Task]) -> GroupedReplies:
        """Sort the replies into single ones and sums.

        Raises:
            PayloadError: a member of a sum is not among the replies, or another one has its arrays.
        """
        singles, sums = [], dict[int, PartialSum]()
        members: dict[int, list[ClientId]] = {}
        for client, reply in sorted(replies.items()):
            if isinstance(reply.arrays, PartialSum):
                sums[id(reply.arrays)] = reply.arrays
                members.setdefault(id(reply.arrays), []).append(client)
            else:
                singles.append((reply.arrays, reply.weight))
        for key, one in sums.items():
            _check_members(one, members[key])
        bases = [(one, self._received(tasks[members[key][0]])) for key, one in sums.items()]
        return GroupedReplies(singles, bases, [reply.weight for reply in replies.values()])

    def _received(self, task: Task) -> Arrays:
        """Return the arrays as the clients received them."""
        return {name: _travelled(name, array, self.down) for name, array in task.arrays.items()}


def _travelled(name: str, array: NDArray[Any], precision: Precision) -> NDArray[Any]:
    return from_wire(to_wire(name, array, precision), wire_dtype(array.dtype, precision))


def weigh_reply(algorithm: Algorithm, task: Task, reply: Reply) -> Reply:
    """Return a client's reply with the weight that the algorithm gives it in the mean.

    Whoever adds replies up does not have the algorithm.
    """
    if task.kind == EVALUATE or task.labels or not len(reply.arrays):
        return reply
    return replace(reply, weight=reply_weight(algorithm, reply))


def is_averaged(task: Task) -> bool:
    """Whether the replies to a task are averaged: they have arrays, and are no evaluations or soft labels."""
    return task.kind != EVALUATE and not task.labels and task.slice is None and len(_shapes(task)) > 0


def _shapes(task: Task) -> Shapes:
    """Return the shapes of the reply's arrays; none if it may choose among several."""
    if task.expect is None:
        return {name: tuple(array.shape) for name, array in task.arrays.items()}
    return {} if isinstance(task.expect, tuple) else task.expect


def _empty(task: Task) -> dict[str, NDArray[Any]]:
    """Return new arrays for the mean, in the dtypes of replies: floats are fp32."""
    return {name: np.empty(shape, reply_dtype(task, name)) for name, shape in _shapes(task).items()}


def _check_members(one: PartialSum, clients: Collection[ClientId]) -> None:
    if {member.client for member in one.members} != set(clients):
        raise PayloadError("a partial sum counts with other clients than its members")
