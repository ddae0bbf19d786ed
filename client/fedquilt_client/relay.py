"""Adds the replies of many clients up before they travel: one reply instead of one for each client.

The clients are those of an agent, or those of the boards behind a site. Replies are held until every client that was
asked has replied or failed, or until the deadline is near.
Then a group is committed to disk, and its sum is sent until a receipt settles it. The receipt lists the clients that
count. All others send their replies again, in another sum or one by one, so nothing is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypedDict

from fedquilt_client.records import JointReply, StoredReply, StoredSum
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import RunStore
from fedquilt_client.sum_groups import SumGroup, SumGroups, SumKey, digest_replies
from fedquilt_client.sum_pools import Pool, can_be_summed, divide_members, divide_replies, sum_key
from fedquilt_client.tasks import TaskId, open_tasks
from fedquilt_client.uploads import Uploads
from fedquilt_common.errors import PayloadError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import ReceiptMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

CLOCK_SECONDS: Final = 5.0
"""From this difference between the clocks of the coordinator and of this board on, there is a warning."""
_POSTPONED: Final = 3
"""Refusals of a sum that are not final, after which its members travel one by one."""


OnDamaged = Callable[[StoredReply], None]
OnSettled = Callable[[StoredReply, ReceiptMessage], None]


@dataclass(frozen=True)
class LeavingTime:
    """When a relay sends the replies that it has: a margin before the deadline.

    Attributes:
        margin: seconds before the deadline.
        share: part of the time that is left. If it is shorter than the margin, it is the margin.
        longest: seconds that an exchange has. If more are left, this board's clock is behind.
    """

    margin: float = 5.0
    share: float = 0.2
    longest: float = float("inf")

    def before(self, deadline: float | None) -> float:
        """Return when they leave, in seconds of the monotonic clock, which no correction of the board's time moves.

        Args:
            deadline: Unix time in seconds; None without.

        Returns:
            A time of ``time.monotonic``; infinity without a deadline; 0, which is at once, if it has passed.
        """
        if deadline is None:
            return float("inf")
        left = min(deadline - time.time(), self.longest)
        return time.monotonic() + left - min(self.margin, self.share * left) if left > 0 else 0.0


class RunView(Protocol):
    """What a relay reads of the run."""

    @property
    def round(self) -> RoundMessage | None:
        """The manifest; None before the first."""

    @property
    def given_up(self) -> Container[TaskId]:
        """Tasks to which no reply will come."""


RunOf = Callable[[], RunView | None]


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
        leaving = LeavingTime(longest=experiment.participation.deadline)
        return Relay(options, on_damaged, store, run_of, lambda: settings.clients, leaving=leaving)
    return Uploads(on_damaged=on_damaged, **options)


class Relay(Uploads):
    """Sends replies as ``Uploads`` does, but adds up those that may travel as a sum.

    Args:
        uploads: the arguments of ``Uploads`` but ``on_damaged``.
        on_damaged: called with a damaged single reply, and with the reply of a joint job that cannot be sent.
        store: of the run.
        run_of: returns the run with its manifest; None before the first.
        clients: returns those whose replies may be added up.
        on_settled: called with each reply that a sum's receipt settles.
        leaving: when replies leave that wait for others.
    """

    def __init__(
        self,
        uploads: UploadOptions,
        on_damaged: OnDamaged,
        store: RunStore,
        run_of: RunOf,
        clients: Callable[[], Iterable[int]],
        on_settled: OnSettled = lambda *_: None,
        leaving: LeavingTime = LeavingTime(),
    ) -> None:
        super().__init__(on_damaged=self._replace_damaged, **uploads)
        self._replace_reply = on_damaged
        self._store = store
        self._run_of = run_of
        self._clients = clients
        self._on_settled, self._leaving = on_settled, leaving
        self._sums = SumGroups(store)
        self._pools: dict[SumKey, Pool] = {}
        self._keys: dict[TaskId, SumKey] = {}
        self._postponed: dict[str, int] = {}
        self._exchange: ExchangeId | None = None
        self._is_clock_reported = False

    def offer(self, reply: StoredReply, *, intact: bool = False) -> None:
        """Hold a reply that may travel in a sum, unless it is settled; send any other."""
        key = self._keys.get((reply.client, reply.task))
        if isinstance(reply, StoredSum) or key is None or reply.client in self._pools[key].alone:
            return super().offer(reply, intact=intact)
        pool = self._pools[key]
        for client in reply.covers:
            pool.awaited.pop(client, None)
        if not pool.settled.issuperset(reply.covers):
            pool.held[reply.client] = reply
            self._intact |= {reply.digest} if intact else set()
            self._send_ready(key, pool)
        return None

    def offer_alone(self, reply: StoredReply, *, intact: bool = False) -> None:
        """Send a reply that cannot be added to others."""
        key = self._keys.get((reply.client, reply.task))
        if key is None:
            return super().offer(reply, intact=intact)
        pool = self._pools[key]
        for client in reply.covers:
            pool.awaited.pop(client, None)
        self._intact |= {reply.digest} if intact else set()
        self._send_alone(pool, [reply])
        return self._send_ready(key, pool)

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
        self._check_clock(run.round)
        self._await(run.round, self._clients())
        for group in self._sums.read(run.round.id):
            self._take_up(group)

    def _check_clock(self, message: RoundMessage) -> None:
        """Warn, once, of a new exchange whose deadline has passed by this board's clock."""
        is_new = self._exchange not in (None, message.id)  # the first one may have been retained for long
        self._exchange = message.id
        late = time.time() - message.deadline if message.deadline is not None else 0.0
        if is_new and late > CLOCK_SECONDS and not self._is_clock_reported:
            self._is_clock_reported = True
            log.warning(
                "the deadline of the new exchange passed %.0f s ago by this board's clock, so no replies are added up. "
                "Either the message was delayed, or the clocks of this board and of the coordinator differ: set both "
                "clocks, such as with NTP",
                late,
            )

    def expect(self, clients: Iterable[int]) -> None:
        """Wait for clients that have appeared since the manifest, too."""
        run = self._run_of()
        if run is not None and run.round is not None:
            self._await(run.round, clients)

    def _await(self, message: RoundMessage, clients: Iterable[int]) -> None:
        """Wait for the replies of these clients that may be added up, unless they have been offered."""
        for task in open_tasks(message.alone(), clients):
            if can_be_summed(task) and task.id not in self._keys:
                key = self._keys[task.id] = sum_key(task)
                if key not in self._pools:
                    self._pools[key] = Pool(self._leaving.before(message.deadline))
                self._pools[key].awaited[task.client] = task.id

    def _take_up(self, group: SumGroup) -> None:
        """Continue with a committed group, if all of its members are asked for their replies again."""
        pool = self._pools.get(group.key)
        if pool is not None and set(group.clients) <= pool.awaited.keys():
            pool.groups[group] = None
        else:
            self._sums.dissolve(group)

    # -- sums ----------------------------------------------------------------------------------

    def _send_ready(self, key: SumKey, pool: Pool) -> None:
        leaves = self._is_complete(pool) or time.monotonic() >= pool.due
        for group, made in list(pool.groups.items()):
            if made is None and pool.held.keys() >= set(group.parts):
                self._send_sum(pool, group)
            elif made is None and leaves:
                # a restart lost a part; its clients' replies then arrived in another part
                self._release(pool, group)
        if pool.held and leaves:
            self._make_groups(key, pool)

    def _is_complete(self, pool: Pool) -> bool:
        """Whether no more replies will come."""
        run = self._run_of()
        failed = run.given_up if run is not None else ()
        return all(task in failed for task in pool.awaited.values())

    def _make_groups(self, key: SumKey, pool: Pool) -> None:
        """Let the replies leave that are in no group: as sums, or one that is the only one by itself."""
        grouped = pool.grouped
        free = [reply for client, reply in sorted(pool.held.items()) if client not in grouped]
        for some in divide_replies(free):
            if len(some) > 1 or isinstance(some[0], JointReply):
                group = self._sums.commit(key, some)
                pool.groups[group] = None
                self._send_sum(pool, group)
            else:
                self._send_alone(pool, some)

    def _send_sum(self, pool: Pool, group: SumGroup) -> None:
        """Add a group up and offer the sum, once the arrays that the clients received are on the disk."""
        replies = [pool.held[client] for client in group.parts]
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
            self._send_alone(pool, replies)
            return
        if made is not None:
            pool.groups[group] = made
            self._intact.difference_update(reply.digest for reply in replies)
            super().offer(made, intact=True)

    def _add_up(self, pool: Pool, group: SumGroup, replies: list[StoredReply]) -> StoredSum | None:
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

    def _release(self, pool: Pool, group: SumGroup) -> None:
        """Forget a group, so that its members can travel in another one."""
        pool.groups.pop(group, None)
        self._sums.dissolve(group)

    def _replace_members(self, pool: Pool, group: SumGroup, damaged: list[StoredReply]) -> None:
        self._release(pool, group)
        for reply in damaged:
            del pool.held[reply.client]
            pool.awaited |= {task[0]: task for task in reply.task_ids}
            self._replace_reply(reply)

    def _replace_damaged(self, reply: StoredReply) -> None:
        """Make a damaged sum again from its replies; a single reply is trained again."""
        found = self._find_group(reply)
        if found is not None:
            pool, group = found
            pool.groups[group] = None
        elif not isinstance(reply, StoredSum):
            self._replace_reply(reply)

    def _find_group(self, reply: StoredReply | None) -> tuple[Pool, SumGroup] | None:
        """Return the group of a sum; None if it is of an earlier manifest, or no sum."""
        pools = ((pool, group, made) for pool in self._pools.values() for group, made in pool.groups.items())
        return next(((pool, group) for pool, group, made in pools if made is not None and made == reply), None)

    def _send_alone(self, pool: Pool, replies: Iterable[StoredReply]) -> None:
        chosen = list(replies)
        for reply in chosen:
            pool.alone.update({client for client, _ in reply.task_ids} - pool.settled)
            pool.held.pop(reply.client, None)
        for reply in chosen:
            if isinstance(reply, JointReply):
                self._replace_reply(reply)
            else:
                super().offer(reply, intact=reply.digest in self._intact)

    # -- receipts ------------------------------------------------------------------------------

    def take_receipt(self, receipt: ReceiptMessage) -> StoredReply | None:
        """Handle a receipt. It settles the members that it lists; the others send their replies again."""
        offer = self._find_offer(receipt)
        found = self._find_group(offer.reply if offer is not None else None)
        reply = super().take_receipt(receipt)
        if found is None:
            return reply
        if reply is not None:
            self._settle(*found, receipt)
        elif not (receipt.damaged or receipt.members):  # who names the members has the sum, and waits
            self._count_postponed(*found, receipt.digest)
        return reply

    def _settle(self, pool: Pool, group: SumGroup, receipt: ReceiptMessage) -> None:
        settled, alone = divide_members(group, receipt)
        pool.settled |= settled
        parts = [pool.held[client] for client in group.parts if client in pool.held]
        for part in parts:
            if settled.issuperset(part.covers):
                del pool.held[part.client]
                self._on_settled(part, receipt)
        if settled.issuperset(group.clients):
            return
        log.warning("round %d: the sum of %d replies: %s", group.key.round, len(group.clients), receipt.reason)
        self._release(pool, group)
        left = [part for part in parts if part.client in pool.held]
        self._send_alone(pool, [part for part in left if (settled | alone).intersection(part.covers)])
        self._send_ready(group.key, pool)

    def _count_postponed(self, pool: Pool, group: SumGroup, digest: str) -> None:
        self._postponed[digest] = self._postponed.get(digest, 0) + 1
        if self._postponed[digest] >= _POSTPONED:
            self._waiting.pop(digest, None)
            self._release(pool, group)
            self._send_alone(pool, [pool.held[client] for client in group.parts if client in pool.held])
