"""Finds out what a reply from a board behind a site is: a single reply or a sum, and whether it may be added up.

Nothing is refused here for what it holds: a reply that cannot be added up travels alone, and the coordinator judges it.
So the coordinator also knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedquilt_client.sum_pools import can_be_summed
from fedquilt_client.tasks import OpenTask
from fedquilt_common.errors import PayloadError, ProtocolError
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.wire.codec import PackedArrays, open_arrays
from fedquilt_common.wire.messages import REPLY_KEY, SUM_KEY, ReplyHeader
from fedquilt_common.wire.parsing import parse

FindTask = Callable[[int], OpenTask | None]
"""Returns the task of a client in the exchange that a reply answers."""


@dataclass(frozen=True)
class ReplyFacts:
    """What a reply is.

    Attributes:
        members: the clients of a partial sum; empty for a single reply.
        summable: whether it may be added to others.
        problem: why not; empty if it may, or if its task does not allow it.
    """

    members: tuple[int, ...]
    summable: bool
    problem: str = ""


def inspect_file(path: Path, run: str, task: OpenTask, find_task: FindTask) -> ReplyFacts:
    """Return what ``inspect_reply`` finds in a file; one that cannot be read travels alone, to be judged."""
    try:
        return inspect_reply(open_arrays(path), run, task, find_task)
    except (PayloadError, OSError) as error:
        return ReplyFacts((), summable=False, problem=str(error))


def inspect_reply(arrays: PackedArrays, run: str, task: OpenTask, find_task: FindTask) -> ReplyFacts:
    """Return what a whole reply is, whose bytes have their digest.

    Args:
        arrays: its container.
        run: identifier of the run.
        task: that of the client in its topic.
        find_task: finds the tasks of a sum's members.
    """
    members: tuple[int, ...] = ()
    try:
        if SUM_KEY in arrays.metadata:
            one = PartialSum(arrays)
            members = tuple(member.client for member in one.members)
            if can_be_summed(task):
                _check_sum(one, run, task, find_task)
        elif can_be_summed(task):
            _check_single(arrays, run, task)
    except ProtocolError as error:
        return ReplyFacts(members, summable=False, problem=str(error))
    return ReplyFacts(members, can_be_summed(task))


def _check_single(arrays: PackedArrays, run: str, task: OpenTask) -> None:
    header = parse(ReplyHeader, arrays.metadata.get(REPLY_KEY, "").encode(), "the reply's header")
    found = header.run, header.client, header.round, header.exchange, header.task
    if found != (run, task.client, *task.message.id, task.fingerprint):
        raise PayloadError("the header of the reply names another run, client, exchange or task")
    if not all(block.dtype.kind != "f" or np.isfinite(block).all() for block in arrays.blocks()):
        raise PayloadError("the reply has numbers that are not finite")


def _check_sum(one: PartialSum, run: str, task: OpenTask, find_task: FindTask) -> None:
    header, patch = one.header, task.patches[0].digest
    if (header.run, header.round, header.exchange, header.base) != (run, *task.message.id, patch):
        raise PayloadError("the header of the sum names another run, exchange or base")
    clients = [member.client for member in one.members]
    if len(clients) < 2 or clients != sorted(clients) or clients[0] != task.client:
        raise PayloadError("the sum does not list its clients in order, or has one only")
    for member in one.members:
        other = find_task(member.client)
        if other is None or other.fingerprint != member.task or other.patches != task.patches:
            raise PayloadError(f"the sum has a reply of client {member.client} to another task")
    one.check_members()  # last, because it adds up the seals of all members
