"""The replies that may be added up and have not travelled, and how they are divided among sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedquilt_client.records import StoredReply, StoredSum
from fedquilt_client.sum_groups import SumGroup, SumKey
from fedquilt_client.tasks import OpenTask, TaskId
from fedquilt_common.wire.messages import MOST_MEMBERS, ReceiptMessage


@dataclass
class Pool:
    """The replies of one key that have not travelled.

    Attributes:
        due: when those that are there leave, in seconds of ``time.monotonic``.
        awaited: tasks whose replies have not been offered, by client.
        held: replies, and sums of other relays, that wait, by their first client.
        groups: committed groups, each with its sum once that is made.
        settled: clients that need to send nothing more.
        alone: clients whose replies travel one by one, because a sum with them was refused.
    """

    due: float
    awaited: dict[int, TaskId] = field(default_factory=dict)
    held: dict[int, StoredReply] = field(default_factory=dict)
    groups: dict[SumGroup, StoredSum | None] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)

    @property
    def grouped(self) -> set[int]:
        """The members of all groups."""
        return {client for group in self.groups for client in group.clients}


def can_be_summed(task: OpenTask) -> bool:
    """Whether the replies to a task of the open exchange may travel as sums."""
    return task.task.summed and len(task.patches) == 1


def sum_key(task: OpenTask) -> SumKey:
    """Return what the replies to a task have in common with others that may be added to them."""
    return SumKey(task.message.round, task.message.exchange, task.patches[0].digest)


def divide_members(group: SumGroup, receipt: ReceiptMessage) -> tuple[set[int], set[int]]:
    """Return the members that a receipt of a sum settles, and those whose replies travel alone."""
    members, named = set(group.clients), set(receipt.members) & set(group.clients)
    if receipt.outcome == "late":
        return members, set()
    if receipt.outcome == "rejected":  # those that it names travel alone, to get receipts of their own
        return set(), named or members
    if not named:  # the sum's first client counts already with another reply, so each reply travels alone
        return set(), members
    return named, set()


def divide_replies(replies: Sequence[StoredReply]) -> list[list[StoredReply]]:
    """Return the replies in groups that one sum can list."""
    groups: list[list[StoredReply]] = []
    room = 0
    for reply in replies:
        if len(reply.covers) > room:
            groups.append([])
            room = MOST_MEMBERS
        groups[-1].append(reply)
        room -= len(reply.covers)
    return groups
