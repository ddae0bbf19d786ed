"""An agent that hosts many clients adds their replies up before they travel: one reply instead of one per client.

Replies are held until every client of the board that was asked has replied or failed, or until the deadline is near.
Then a group is committed to disk, and its sum is sent until a receipt settles it. The receipt lists the clients that
count. All others send their replies again, in another sum or one by one, so nothing is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypedDict

from fedquilt_client.current_run import CurrentRun
from fedquilt_client.records import StoredReply, StoredSum
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import RunStore
from fedquilt_client.sum_groups import SumGroup, SumGroups, SumKey, digest_replies
from fedquilt_client.tasks import TaskId, open_tasks
from fedquilt_client.uploads import Uploads
from fedquilt_common.errors import PayloadError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import MOST_MEMBERS, ReceiptMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

_MARGIN, _SHARE = 5.0, 0.2
"""A sum leaves this long before the deadline, in seconds, or this share of the time if that is less."""
_POSTPONED: Final = 3
"""Refusals of a sum that are not final, after which its members travel one by one."""


OnDamaged = Callable[[StoredReply], None]
RunOf = Callable[[], CurrentRun | None]


class UploadOptions(TypedDict):
    """What ``Uploads`` needs besides ``on_damaged``."""

    agent: str
    transport: Transport
    topics: Topics
    blob_of: Callable[[StoredReply], Blob]
    chunk: int
    speedup: float


def make_uploads(
    settings: AgentSettings,
    store: RunStore,
    experiment: Experiment,
    transport: Transport,
    topics: Topics,
    on_damaged: OnDamaged,
    run_of: RunOf,
) -> Uploads:
    """Return what sends this agent's replies: one by one, or added up.

    Args:
        settings: of the agent.
        store: of the run.
        experiment: of the run.
        transport: sends the chunks.
        topics: of the federation.
        on_damaged: called with a reply that must be trained again.
        run_of: returns the run with its manifest; None before the first.
    """
    options = UploadOptions(
        agent=settings.name,
        transport=transport,
        topics=topics,
        blob_of=store.blob,
        chunk=experiment.chunk,
        speedup=experiment.speedup,
    )
    if settings.relay:
        return Relay(options, on_damaged, store, run_of, settings.clients)
    return Uploads(on_damaged=on_damaged, **options)


@dataclass
class _Pool:
    """The replies of one key that have not travelled.

    Attributes:
        due: Unix time in seconds at which those that are there leave.
        awaited: tasks whose replies have not been offered.
        held: replies that wait, by client.
        groups: committed groups, each with its sum once that is made.
        settled: clients that need to send nothing more.
        alone: clients whose replies travel one by one, because a sum with them was refused.
    """

    due: float
    awaited: set[TaskId] = field(default_factory=set)
    held: dict[int, StoredReply] = field(default_factory=dict)
    groups: dict[SumGroup, StoredSum | None] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)

    @property
    def grouped(self) -> set[int]:
        """The members of all groups."""
        return {client for group in self.groups for client in group.clients}


class Relay(Uploads):
    """Sends replies as ``Uploads`` does, but adds up those that may travel as a sum.

    Args:
        uploads: the arguments of ``Uploads`` but ``on_damaged``.
        on_damaged: called with a single reply that is damaged.
        store: of the run.
        run_of: returns the run with its manifest; None before the first.
        clients: those of this agent.
    """

    def __init__(
        self,
        uploads: UploadOptions,
        on_damaged: OnDamaged,
        store: RunStore,
        run_of: RunOf,
        clients: Iterable[int],
    ) -> None:
        super().__init__(on_damaged=self._replace_damaged, **uploads)
        self._replace_reply = on_damaged
        self._store = store
        self._run_of = run_of
        self._clients = tuple(clients)
        self._sums = SumGroups(store)
        self._pools: dict[SumKey, _Pool] = {}
        self._keys: dict[TaskId, SumKey] = {}
        self._postponed: dict[str, int] = {}

    def offer(self, reply: StoredReply, *, intact: bool = False) -> None:
        """Hold a reply that may travel in a sum, unless it is settled; send any other."""
        key = self._keys.get((reply.client, reply.task))
        if isinstance(reply, StoredSum) or key is None or reply.client in self._pools[key].alone:
            return super().offer(reply, intact=intact)
        pool = self._pools[key]
        pool.awaited.discard((reply.client, reply.task))
        if reply.client not in pool.settled:
            pool.held[reply.client] = reply
            self._intact |= {reply.digest} if intact else set()
            self._send_ready(key, pool)
        return None

    def advance(self) -> None:
        """Send sums whose members are complete or whose time has come; otherwise as ``Uploads.advance``."""
        super().advance()
        for key, pool in self._pools.items():
            self._send_ready(key, pool)

    def review(self, is_asked: Callable[[StoredReply], bool]) -> None:
        """Prepare for a manifest: find the tasks whose replies may be added up, and the groups that still apply."""
        self._open_pools()
        super().review(is_asked)

    def _open_pools(self) -> None:
        run = self._run_of()
        self._pools, self._keys, self._postponed = {}, {}, {}
        if run is None or run.round is None:
            return
        message = run.round
        for task in open_tasks(message.alone(), self._clients):
            if task.task.summed and len(task.patches) == 1:
                key = SumKey(message.round, message.exchange, task.patches[0].digest)
                if key not in self._pools:
                    self._pools[key] = _Pool(_leaving_time(message.deadline))
                self._pools[key].awaited.add(task.id)
                self._keys[task.id] = key
        for group in self._sums.read(message.id):
            self._take_up(group)

    def _take_up(self, group: SumGroup) -> None:
        """Continue with a committed group, if all of its members are asked for their replies again."""
        pool = self._pools.get(group.key)
        if pool is not None and set(group.clients) <= {client for client, _ in pool.awaited}:
            pool.groups[group] = None
        else:
            self._sums.dissolve(group)

    # -- sums ----------------------------------------------------------------------------------

    def _send_ready(self, key: SumKey, pool: _Pool) -> None:
        for group, made in list(pool.groups.items()):
            if made is None and pool.held.keys() >= set(group.clients):
                self._send_sum(pool, group)
        run = self._run_of()
        failed = run.given_up if run is not None else {}
        complete = all(task in failed for task in pool.awaited)
        if pool.held and (complete or time.time() >= pool.due):
            self._make_groups(key, pool)

    def _make_groups(self, key: SumKey, pool: _Pool) -> None:
        """Let the replies leave that are in no group: as sums, or one that is the only one by itself."""
        grouped = pool.grouped
        free = [reply for client, reply in sorted(pool.held.items()) if client not in grouped]
        for start in range(0, len(free), MOST_MEMBERS):
            part = free[start : start + MOST_MEMBERS]
            if len(part) > 1:
                group = self._sums.commit(key, part)
                pool.groups[group] = None
                self._send_sum(pool, group)
            else:
                self._send_alone(pool, [part[0].client])

    def _send_sum(self, pool: _Pool, group: SumGroup) -> None:
        """Add a group up and offer the sum, once the arrays that the clients received are on the disk."""
        replies = [pool.held[client] for client in group.clients]
        if digest_replies(replies) != group.digest:  # one was lost, and trained again
            self._release(pool, group)
            return
        try:
            made = self._add_up(pool, group, replies)
        except OSError as error:
            log.warning("the sum of %d replies cannot be made now: %s", len(group.clients), error)
            return
        except (PayloadError, LookupError, ValueError) as error:  # each reply gets a receipt of its own
            log.warning("the replies of clients %s cannot be added up: %s", list(group.clients), error)
            self._release(pool, group)
            self._send_alone(pool, group.clients)
            return
        if made is not None:
            pool.groups[group] = made
            self._intact.difference_update(reply.digest for reply in replies)
            super().offer(made, intact=True)

    def _add_up(self, pool: _Pool, group: SumGroup, replies: list[StoredReply]) -> StoredSum | None:
        """Return the sum of a group; None if its base is not there, or a reply is damaged.

        Raises:
            OSError: a file cannot be read or written now.
        """
        if not CheckedFile(self._store.patch(group.key.base), group.key.base).is_intact():
            return None
        damaged = self._sums.find_damaged([reply for reply in replies if reply.digest not in self._intact])
        if damaged:
            self._replace_members(pool, group, damaged)
            return None
        return self._sums.write(group, pool.held)

    def _release(self, pool: _Pool, group: SumGroup) -> None:
        """Forget a group, so that its members can travel in another one."""
        pool.groups.pop(group, None)
        self._sums.dissolve(group)

    def _replace_members(self, pool: _Pool, group: SumGroup, damaged: list[StoredReply]) -> None:
        self._release(pool, group)
        for reply in damaged:
            del pool.held[reply.client]
            pool.awaited.add((reply.client, reply.task))
            self._replace_reply(reply)

    def _replace_damaged(self, reply: StoredReply) -> None:
        """Make a damaged sum again from its replies; a single reply is trained again."""
        found = self._find_group(reply)
        if found is not None:
            pool, group = found
            pool.groups[group] = None
        elif not isinstance(reply, StoredSum):
            self._replace_reply(reply)

    def _find_group(self, reply: StoredReply | None) -> tuple[_Pool, SumGroup] | None:
        """Return the group of a sum; None if it is of an earlier manifest, or no sum."""
        pools = ((pool, group, made) for pool in self._pools.values() for group, made in pool.groups.items())
        return next(((pool, group) for pool, group, made in pools if made is not None and made == reply), None)

    def _send_alone(self, pool: _Pool, clients: Iterable[int]) -> None:
        chosen = list(clients)
        pool.alone.update(chosen)
        replies = [pool.held.pop(client) for client in chosen if client in pool.held]
        for reply in replies:
            super().offer(reply, intact=reply.digest in self._intact)

    # -- receipts ------------------------------------------------------------------------------

    def take_receipt(self, receipt: ReceiptMessage) -> StoredReply | None:
        """Handle a receipt. It settles the members that it lists; the others send their replies again."""
        sending = self._sending.get(receipt.digest)
        found = self._find_group(sending.reply if sending is not None else None)
        reply = super().take_receipt(receipt)
        if found is None:
            return reply
        if reply is not None:
            self._settle(*found, receipt)
        elif not receipt.damaged:
            self._count_postponed(*found, receipt.digest)
        return reply

    def _settle(self, pool: _Pool, group: SumGroup, receipt: ReceiptMessage) -> None:
        if receipt.outcome == "late":
            settled, alone = set(group.clients), set[int]()
        elif receipt.outcome == "rejected":  # those that it names travel alone, to get receipts of their own
            settled, alone = set[int](), set(receipt.members) or set(group.clients)
        else:
            settled, alone = set(receipt.members), set[int]()
        if not (settled or alone):  # the first client counts already, with another reply
            alone = set(group.clients)
        pool.settled |= settled
        for client in settled:
            pool.held.pop(client, None)
        if settled >= set(group.clients):
            return
        log.warning("round %d: the sum of %d replies: %s", group.key.round, len(group.clients), receipt.reason)
        self._release(pool, group)
        self._send_alone(pool, sorted(alone & set(group.clients)))
        self._send_ready(group.key, pool)

    def _count_postponed(self, pool: _Pool, group: SumGroup, digest: str) -> None:
        self._postponed[digest] = self._postponed.get(digest, 0) + 1
        if self._postponed[digest] >= _POSTPONED:
            self._waiting.pop(digest, None)
            self._release(pool, group)
            self._send_alone(pool, group.clients)


def _leaving_time(deadline: float | None) -> float:
    """Return the Unix time at which replies leave that wait for others; at once where the clock cannot be right."""
    if deadline is None:
        return float("inf")
    left = deadline - time.time()
    return deadline - min(_MARGIN, _SHARE * left) if left > 0 else 0.0
