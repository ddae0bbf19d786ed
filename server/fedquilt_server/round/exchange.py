"""The machine's record of the open exchange, and what becomes of a reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_common.wire.messages import Outcome
from fedquilt_server.round.events import CutOff, Event, Rejected, Replied, Resumed, Ticked
from fedquilt_server.round.policy import Policy
from fedquilt_server.round.ports import Load

ReplyId = tuple[ClientId, int, int]
"""Client, and round and exchange of the task that the reply answers."""
CountedReply = tuple[ClientId, int]
"""A reply of the open round that counts: client, and number of the exchange in which it counts."""


@dataclass
class Exchange:
    """The open exchange: the tasks, and the replies that count.

    Attributes:
        id: its round, and its number within the round, from 0.
        tasks: the tasks that it published.
        deadline: Unix time in seconds; None if the exchange waits for all replies.
        hosts: the agent that hosted each client when the exchange opened.
        declined: clients that will not reply, because their privacy budget or their board's owner does not allow it.
        failed: those of the missing clients whose last answer is that they cannot do their task, or a reply that is
            refused for good.
        overdue: the deadline has passed once, so a quorum is enough.
        until: replies that close it; None: those of all clients.
        earlier: clients that still work on a task of an earlier exchange, whose replies count here, with its round
            and number.
    """

    id: ExchangeId
    tasks: Mapping[ClientId, Task]
    deadline: float | None
    hosts: Mapping[ClientId, str] = field(default_factory=dict)
    replies: dict[ClientId, Replied] = field(default_factory=dict)
    overdue: bool = False
    declined: set[ClientId] = field(default_factory=set)
    failed: set[ClientId] = field(default_factory=set)
    until: int | None = None
    earlier: Mapping[ClientId, ExchangeId] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Its number within the round, from 0."""
        return self.id[1]

    @property
    def clients(self) -> Collection[ClientId]:
        """The clients whose replies can count."""
        return self.tasks.keys() | self.earlier.keys() if self.earlier else self.tasks.keys()

    def asked(self, client: ClientId) -> ExchangeId | None:
        """Return round and exchange of the task that a client works on; None if it has none."""
        return self.id if client in self.tasks else self.earlier.get(client)

    def note_time(self, at: float) -> None:
        """Note the time: once the deadline has passed, a quorum stays enough."""
        self.overdue = self.overdue or self.is_late(at)

    def postpone(self, event: Resumed | CutOff, whole: float | None) -> None:
        """Move the deadline, which was ``whole`` seconds long, if there is one."""
        if self.deadline is not None and whole is not None:
            self.deadline = event.postpone(self.deadline, whole)

    def is_complete(self, policy: Policy) -> bool:
        """Whether enough clients have replied: all, or ``until``; a quorum once the deadline has passed.

        Clients that have declined are not waited for, but without any reply no exchange is complete.
        """
        return len(self.replies) >= self._enough(policy, self.overdue) and (bool(self.replies) or not self.clients)

    def _enough(self, policy: Policy, overdue: bool) -> int:
        quorum = policy.least(self.able)
        least = quorum if self.until is None else min(quorum, self.wanted)
        able = self.able - len(self.failed) if policy.skips_failed else self.able
        return least if overdue else max(min(self.wanted, able), least)

    def closes_without_failed(self, policy: Policy) -> bool:
        """Whether it closes before its deadline only because clients that have failed are not waited for."""
        return policy.skips_failed and not self.overdue and len(self.replies) < self.wanted

    @property
    def wanted(self) -> int:
        """Number of replies that close it before its deadline."""
        return self.able if self.until is None else min(self.until, self.able)

    @property
    def able(self) -> int:
        """Number of clients with a task that have not declined."""
        return len(self.clients) - len(self.declined)

    def can_close(self, policy: Policy) -> bool:
        """Whether replies can still close the exchange, although clients have declined."""
        return bool(self.missing or self.replies) and self.able >= policy.least(self.able)

    @property
    def lasting(self) -> bool:
        """Whether the round must not start again because of missing replies."""
        return any(task.lasting for task in self.tasks.values())

    def accept(self, event: Replied) -> None:
        """Add a reply that counts, even of a client that declined before."""
        self.replies[event.client] = event
        self.declined.discard(event.client)
        self.failed.discard(event.client)

    def fail(self, client: ClientId) -> None:
        """Note that a client has failed, unless its reply counts or it has declined."""
        if client in self.clients and client not in self.replies and client not in self.declined:
            self.failed.add(client)

    def decline(self, client: ClientId) -> None:
        """Note that a client will not reply, unless its reply counts."""
        if client in self.clients and client not in self.replies:
            self.declined.add(client)
            self.failed.discard(client)

    def closes_with(self, event: Event, policy: Policy) -> bool:
        """Whether an event completes it: a reply if it counts, a client that declines or fails, or the time."""
        then, replies = self, len(self.replies)
        match event:
            case Replied() if self.asked(event.client) is not None:
                replies += 1
                if self.declined or self.failed:
                    then = self._copy_without(event.client)
            case Rejected(declined=True) if event.client in self.missing:
                then = self._copy_without(event.client)
                then.decline(event.client)
                if not then.can_close(policy):
                    return False
            case Rejected(failed=True, client=int(client)) if policy.skips_failed:
                then = self._copy_without(client)
                then.fail(client)
            case Ticked():
                pass
            case _:
                return False
        enough = then._enough(policy, self.overdue or self.is_late(event.at))
        return replies >= enough and (replies > 0 or not self.clients)

    def _copy_without(self, client: ClientId) -> Exchange:
        """Return a copy in which a client has neither declined nor failed."""
        return replace(self, declined=self.declined - {client}, failed=self.failed - {client})

    @property
    def missing(self) -> list[ClientId]:
        """The clients with a task that have neither replied nor declined, in client order."""
        return sorted(set(self.clients) - set(self.replies) - self.declined)

    @property
    def left_out(self) -> list[ClientId]:
        """The clients whose replies do not count any more when it closes, in client order."""
        return self.missing if self.until is None else []

    @property
    def answers(self) -> dict[ClientId, ExchangeId]:
        """Round and exchange of the task that each reply answers, in client order."""
        return {client: (reply.round, reply.exchange) for client, reply in sorted(self.replies.items())}

    @property
    def going_on(self) -> dict[ClientId, ExchangeId]:
        """The clients that go on with their tasks when it closes, each with round and exchange of its task.

        One that has failed would fail again, and keep its place among the clients that train.
        """
        if self.until is None:
            return {}
        return {client: self.earlier.get(client, self.id) for client in self.missing if client not in self.failed}

    def same_replies(self, before: Exchange) -> list[Replied]:
        """Return the replies of an exchange before the round started again that answer the tasks of this one.

        A partial sum stays only as a whole.
        """
        replies = sorted(before.replies.items()) if self.id == before.id else []
        gone = {reply.file for client, reply in replies if not self._asks_the_same(client, before)}
        return [reply for _, reply in replies if reply.file not in gone]

    def _asks_the_same(self, client: ClientId, before: Exchange) -> bool:
        if client in self.tasks and client in before.tasks:
            return same_task(self.tasks[client], before.tasks[client])
        return client in self.earlier and self.earlier[client] == before.earlier.get(client)

    def is_late(self, at: float) -> bool:
        """Whether the deadline has passed at this time."""
        return self.deadline is not None and at >= self.deadline


class AcceptedReplies(dict[ReplyId, ExchangeId]):
    """The replies that count, each with the exchange in which it counts."""

    def add(self, event: Replied, exchange: Exchange) -> None:
        """Add a reply that counts in an exchange."""
        self[event.client, event.round, event.exchange] = exchange.id

    def since(self, round: int) -> AcceptedReplies:
        """Return the replies that count in a round or later."""
        return AcceptedReplies({reply: counted for reply, counted in self.items() if counted[0] >= round})

    def split(self, round: int) -> tuple[set[CountedReply], AcceptedReplies]:
        """Return the replies that count in a round, and the others."""
        own = {(reply[0], counted[1]) for reply, counted in self.items() if counted[0] == round}
        return own, AcceptedReplies({reply: counted for reply, counted in self.items() if counted[0] != round})


def read_replies(exchange: Exchange, load: Load) -> dict[ClientId, Reply]:
    """Return the replies that count, as the algorithm receives them, in client order.

    Args:
        exchange: the exchange, which closes.
        load: returns the arrays of accepted replies.
    """
    events = [event for _, event in sorted(exchange.replies.items())]
    return {
        event.client: Reply(arrays, event.weight, event.metrics, (event.round, event.exchange))
        for event, arrays in zip(events, load(events), strict=True)
    }


def judge_reply(
    reply: ReplyId,
    accepted: Collection[ReplyId],
    open_round: int,
    open_exchange: Exchange | None,
    finished: bool,
    working: Mapping[ClientId, ExchangeId],
) -> tuple[Outcome, str]:
    """Return the outcome of a complete and valid reply, and the reason if it does not count.

    Args:
        reply: its client, round and exchange.
        accepted: the replies that count.
        open_round: number of the open round, or of the next one.
        open_exchange: None if none is open.
        finished: whether the run is over.
        working: the clients that go on with tasks of earlier exchanges while none is open.
    """
    client, round, exchange = reply
    number = open_exchange.number if open_exchange else 0
    answers = open_exchange.asked(client) if open_exchange else None
    if reply in accepted:
        return "duplicate", "a reply of this client has been counted"
    if answers == (round, exchange):
        return "accepted", ""
    waits = open_exchange is None and working.get(client) == (round, exchange)
    if finished or ((round, exchange) < (open_round, number) and not waits):
        return "late", f"round {round}, exchange {exchange} is closed"
    if open_exchange is None or (round, exchange) != (open_round, number):
        return "rejected", f"round {round}, exchange {exchange} is not open"
    return "rejected", f"client {client} was not asked in round {round}"


def same_task(task: Task, other: Task) -> bool:
    """Whether a reply to one task answers the other."""
    same_arrays = task.arrays is other.arrays or not (len(task.arrays) or len(other.arrays))
    return same_arrays and _request(task) == _request(other)


def _request(task: Task) -> tuple[object, ...]:
    """Return all of a task but its arrays."""
    return task.kind, task.scalars, task.slice, task.labels, task.expect, task.dtypes
