"""The replies that the relay of a site has taken: one record for each, until the next manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fedquilt_client.records import StoredReply
from fedquilt_client.store import RunStore
from fedquilt_client.tasks import OpenTask, TaskId
from fedquilt_common.wire.messages import Outcome
from fedquilt_common.wire.repairs import LAST_PROBE_SECONDS, SHORTEST_PROBE_SECONDS

if TYPE_CHECKING:
    from fedquilt_client.site_checks import ReplyFacts

log = logging.getLogger(__name__)

PAST_KEPT: Final = 10_000
"""Limit of the outcomes of earlier exchanges that are remembered, for boards that ask late."""
REFUSED_KEPT: Final = 10_000
"""Limit of the replies to the open exchange that are remembered although none of their clients counts."""


@dataclass(frozen=True)
class Settlement:
    """What became of a reply: the outcome of the members of a sum, and of a single reply."""

    outcome: Outcome
    reason: str
    members: tuple[int, ...] = ()

    @property
    def again(self) -> Outcome:
        """The outcome for a board that asks again."""
        return "duplicate" if self.outcome == "accepted" else self.outcome

    def counted(self, reply: StoredReply) -> set[int]:
        """Return the clients that count with a reply."""
        if self.outcome not in ("accepted", "duplicate"):
            return set()
        return set(self.members if reply.is_sum else reply.covers)


@dataclass
class TakenReply:
    """A reply to the open exchange.

    Attributes:
        reply: the file on the relay's disk, with its clients if it is a sum.
        tasks: those that it answers, one of each of its clients.
        settlement: what became of it; None while the coordinator has not decided.
        probe_at: monotonic time in seconds from which its board may ask for the receipt again.
        pause: seconds from then until the next time.
    """

    reply: StoredReply
    tasks: Sequence[TaskId] = ()
    settlement: Settlement | None = None
    probe_at: float = 0.0
    pause: float = SHORTEST_PROBE_SECONDS

    def take_probe(self, now: float) -> bool:
        """Return whether a probe is due; if it is, double the pause until the next, as agents do."""
        if now < self.probe_at:
            return False
        self.probe_at, self.pause = now + self.pause, min(2 * self.pause, LAST_PROBE_SECONDS)
        return True


class SiteReplies:
    """The replies to the open exchange, by digest and by task.

    Args:
        store: of the run.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._taken: dict[str, TakenReply] = {}
        self._answers: dict[TaskId, TakenReply] = {}
        self._refused: dict[str, None] = {}
        self._facts: dict[str, ReplyFacts] = {}
        self._past: dict[str, Settlement] = {}

    @property
    def unsettled(self) -> list[StoredReply]:
        """The replies that wait for the coordinator's receipt."""
        return [taken.reply for taken in self._taken.values() if taken.settlement is None]

    def find(self, digest: str) -> TakenReply | None:
        """Return a reply to the open exchange; None if it has not been taken."""
        return self._taken.get(digest)

    def find_answer(self, task: TaskId) -> TakenReply | None:
        """Return the reply that answers a task; None if none does, or none that may count."""
        return self._answers.get(task)

    def find_past(self, digest: str) -> Settlement | None:
        """Return what became of a reply to an earlier exchange; None if that is not known."""
        return self._past.get(digest)

    def is_summable(self, reply: StoredReply) -> bool:
        """Whether a reply that ``inspect`` has read may be added to others."""
        return self._facts[reply.digest].summable

    def inspect(self, stored: StoredReply, task: OpenTask, find_task: Callable[[int], OpenTask | None]) -> StoredReply:
        """Return a stored reply with its clients, if it is a sum.

        Args:
            stored: a whole reply, on the disk.
            task: that of the client in its topic.
            find_task: returns the task of another client in the same exchange.
        """
        from fedquilt_client.site_checks import inspect_file  # an idle relay needs no numpy

        if (facts := self._facts.get(stored.digest)) is None:
            facts = inspect_file(self._store.blob(stored).path, self._store.run.run, task, find_task)
            self._facts[stored.digest] = facts
            if facts.problem:
                text = "client %d, round %d: its reply travels alone: %s"
                log.warning(text, task.client, task.message.round, facts.problem)
        return replace(stored, clients=facts.members)

    def take(self, reply: StoredReply, tasks: Sequence[TaskId]) -> None:
        """Note a reply that answers these tasks from now on."""
        self._refused.pop(reply.digest, None)
        taken = self._taken[reply.digest] = TakenReply(reply, tasks)
        self._answers |= dict.fromkeys(tasks, taken)

    def settle(self, reply: StoredReply, settlement: Settlement) -> str | None:
        """Note what became of a reply; other replies can answer the tasks of clients that do not count with it.

        Returns:
            The digest of a refused reply that is forgotten in return, as if it had not come; None if none is.
        """
        taken = self._taken.setdefault(reply.digest, TakenReply(reply))
        taken.settlement = settlement
        counted = settlement.counted(reply)
        if not counted.issuperset(reply.covers):
            self._make_room(taken, counted)
        self._refused.pop(reply.digest, None)
        if not counted:
            self._refused[reply.digest] = None
        return self._forget_oldest() if len(self._refused) > REFUSED_KEPT else None

    def _forget_oldest(self) -> str:
        """Forget the oldest refused reply; if its board asks again, it sends the reply again."""
        digest = next(iter(self._refused))
        del self._refused[digest], self._taken[digest]
        return digest

    def discard(self, reply: StoredReply) -> None:
        """Forget a reply that never counts, as if it had not come."""
        self._refused.pop(reply.digest, None)
        self._make_room(self._taken.pop(reply.digest, TakenReply(reply)))

    def _make_room(self, taken: TakenReply, counted: Container[int] = ()) -> None:
        self._facts.pop(taken.reply.digest, None)
        for task in taken.tasks:
            if task[0] not in counted:
                self._answers.pop(task, None)
        self._store.forget(taken.reply)

    def begin_exchange(self, kept: Collection[str]) -> None:
        """Begin an exchange, and remember what became of the replies to the last one.

        Args:
            kept: digests of the replies on the disk that answer its tasks, too.
        """
        settled = {digest: taken.settlement for digest, taken in self._taken.items() if taken.settlement is not None}
        self._past = dict(list({**self._past, **settled}.items())[-PAST_KEPT:])
        self._taken, self._answers, self._refused = {}, {}, {}
        self._facts = {digest: facts for digest, facts in self._facts.items() if digest in kept}
