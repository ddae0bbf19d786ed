"""The machine's events and commands. Events are stored in the journal as JSON; commands are not stored.

Times named ``at`` are Unix times in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, get_args

from fedquilt_common.algorithm_api import State, Task
from fedquilt_common.types import ClientId, ExchangeId, Profile
from fedquilt_common.wire.messages import Outcome
from fedquilt_common.wire.number_ranges import pack_numbers, unpack_numbers

REJOIN_SECONDS: Final = 30.0
"""Least time for a reply after a long time without a broker: an agent may wait 18 s before it connects again."""


@dataclass(frozen=True)
class Joined:
    """An agent has connected or changed what it announces; ``boot`` grows with each of its starts."""

    at: float
    agent: str
    boot: int
    clients: tuple[ClientId, ...]
    workers: int = 1
    profile: Profile = field(default_factory=Profile)


@dataclass(frozen=True)
class Left:
    """An agent has left, or its last will was published. Ignored if a later boot has joined since."""

    at: float
    agent: str
    boot: int


@dataclass(frozen=True)
class Replied:
    """A reply is complete, verified and durable on disk.

    Attributes:
        agent: the agent that hosts the client.
        digest: XXH3 or SHA-256 of the reply.
        weight: the client's weight in the average.
        payload: bytes of the payloads in which it arrived, repeated ones included.
        began: Unix time in seconds at which its first chunk arrived; None in journals of earlier versions.
        carrier: the first member of the partial sum with which it came, whose digest it has; None: it came alone.
        more: members of the sum that follow, in the same transaction of the journal.
        relay: the agent that sent it for a board behind its site; empty: the board itself.
    """

    at: float
    agent: str
    client: ClientId
    round: int
    exchange: int
    digest: str
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    payload: int = 0
    began: float | None = None
    carrier: ClientId | None = None
    more: int = 0
    relay: str = ""

    @property
    def sender(self) -> str:
        """The agent that sent it, and receives the receipt."""
        return self.relay or self.agent

    @property
    def file(self) -> tuple[ClientId, int, int, str]:
        """The client, round, exchange and digest that name its bytes on disk."""
        return self.client if self.carrier is None else self.carrier, self.round, self.exchange, self.digest

    def receipt(self, outcome: Outcome, reason: str) -> Receipt:
        """Return the command that reports the outcome."""
        ids = self.sender, self.client, self.round, self.exchange, self.digest
        return Receipt(*ids, outcome, reason, carrier=self.carrier, more=self.more)


@dataclass(frozen=True)
class Rejected:
    """An agent sent something that cannot count.

    Attributes:
        outcome: the column of the results in which it is counted.
        failed: whether the client could not do its task, or its reply is refused for good.
        declined: whether the client does no task of the run any more, because its privacy budget or its board's owner
            does not allow it.
    """

    at: float
    agent: str
    client: ClientId | None
    round: int
    reason: str
    outcome: Outcome = "rejected"
    failed: bool = False
    declined: bool = False


@dataclass(frozen=True)
class Resumed:
    """The coordinator has restarted: the deadline of an open exchange starts again.

    Attributes:
        away: seconds before it in which no coordinator ran; 0 in journals of earlier versions.
    """

    at: float
    away: float = 0.0

    def postpone(self, deadline: float, whole: float) -> float:
        """Return the new time of a deadline that was ``whole`` seconds long: it begins again."""
        return self.at + whole


@dataclass(frozen=True)
class CutOff:
    """The coordinator is connected again, or no longer frozen: for a while no message could arrive.

    Attributes:
        seconds: how long that lasted.
    """

    at: float
    seconds: float

    def postpone(self, deadline: float, whole: float) -> float:
        """Return the new time of a deadline that was ``whole`` seconds long: later by the time that was lost.

        Boards have as long again to connect, up to ``REJOIN_SECONDS``; never more than the whole deadline is left.
        """
        least = self.at + min(whole, self.seconds, REJOIN_SECONDS)
        return min(max(deadline + self.seconds, least), self.at + whole)


@dataclass(frozen=True)
class Ticked:
    """The time ``Machine.wake_at`` is reached."""

    at: float


@dataclass(frozen=True)
class Paused:
    """A person has paused the run: the open round goes on, and no other one opens.

    Attributes:
        stops: whether the person wants the run to end then.
    """

    at: float
    stops: bool = False


@dataclass(frozen=True)
class Continued:
    """A person lets a paused run go on."""

    at: float


@dataclass(frozen=True)
class RoundRestarted:
    """An accepted reply is damaged or missing, or a masked sum is spoiled: the round starts again without any reply.

    A recovery skips replies, ticks and declines before this event, because it may not be able to read the replies. So
    the event holds what they had decided.

    Attributes:
        reason: the file that is damaged, or what spoiled the sum, for people.
        opened_at: Unix time in seconds at which the round first opened.
        fleet: the connected clients for which the round opened, with their profiles.
        outcomes: replies since the checkpoint that were not accepted, by outcome.
        declined: clients that do no task any more.
    """

    at: float
    round: int
    reason: str
    opened_at: float
    fleet: Mapping[ClientId, Profile]
    outcomes: Mapping[str, int]
    declined: tuple[ClientId, ...] = ()


Event = Joined | Left | Replied | Rejected | Resumed | CutOff | Ticked | RoundRestarted | Paused | Continued
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def encode_event(event: Event) -> tuple[str, str]:
    """Return the event's kind and its fields as JSON."""
    if isinstance(event, Joined):  # asdict would copy all clients
        fields = asdict(replace(event, clients=())) | {"clients": pack_numbers(event.clients)}
    elif isinstance(event, Replied):  # asdict copies each field, and there are thousands of replies
        fields = {**vars(event), "metrics": dict(event.metrics)}
    else:
        fields = asdict(event)
    return type(event).__name__, json.dumps(fields, separators=(",", ":"), allow_nan=False)


def decode_event(kind: str, body: str) -> Event:
    """Return the event that ``encode_event`` wrote."""
    fields = json.loads(body)
    if kind == "Joined":
        fields["clients"] = tuple(unpack_numbers(fields["clients"]))
        fields["profile"] = Profile(**fields["profile"])
    if kind == "RoundRestarted":
        fields["fleet"] = {int(client): Profile(**profile) for client, profile in fields["fleet"].items()}
        fields["declined"] = tuple(fields.get("declined", ()))
    event: Event = _KINDS[kind](**fields)
    return event


def skip_dropped(events: Sequence[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Return the events that a recovery handles: no replies, ticks and declines before the last restart of the round.

    Args:
        events: sequence number and event of all since the checkpoint.
    """
    restarts = [seq for seq, event in events if isinstance(event, RoundRestarted)]
    last = max(restarts, default=0)
    return [(seq, event) for seq, event in events if seq >= last or not _is_dropped(event)]


def _is_dropped(event: Event) -> bool:
    return isinstance(event, Replied | Ticked | RoundRestarted) or (isinstance(event, Rejected) and event.declined)


@dataclass(frozen=True)
class Send:
    """Open an exchange: publish its tasks.

    Attributes:
        deadline: Unix time in seconds; None if there is none.
        since: each client's last reply that counts.
        until: replies that close it; None: those of all clients.
        earlier: clients that go on with a task of an earlier exchange, with its round and exchange.
    """

    round: int
    exchange: int
    tasks: Mapping[ClientId, Task]
    deadline: float | None
    since: Mapping[ClientId, ExchangeId] = field(default_factory=dict)
    until: int | None = None
    earlier: Mapping[ClientId, ExchangeId] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """Send an agent the outcome of a reply.

    Attributes:
        final: False if the same reply may be accepted later.
        carrier: the first member of the partial sum with which it came; None: it came alone.
        more: members of the sum whose receipts follow.
    """

    agent: str
    client: ClientId
    round: int
    exchange: int
    digest: str
    outcome: Outcome
    reason: str = ""
    damaged: bool = False
    final: bool = True
    carrier: ClientId | None = None
    more: int = 0


@dataclass(frozen=True)
class Stop:
    """Notify the agents of these clients that the exchange has closed without them."""

    round: int
    exchange: int
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Tally:
    """The counts of a finished round.

    Attributes:
        clients: replies that counted in the first exchange, to ``asked`` tasks.
        replies: replies that counted in all exchanges.
        train_seconds: training time of the busiest agent, shared out among its workers.
        opened_at: Unix time in seconds.
        away_seconds: time since then in which no coordinator ran.
        missing: exchange -> client -> the agent that was asked, of all clients without a reply that counts.
        discarded: exchange -> clients whose accepted reply does not count, because the round started again.
        ages: rounds that have ended since the task of each reply that counts was sent, where tasks go on.
    """

    clients: int
    asked: int
    late: int
    rejected: int
    duplicates: int
    train_seconds: float
    opened_at: float
    replies: int = 0
    missing: Mapping[int, Mapping[ClientId, str]] = field(default_factory=dict)
    discarded: Mapping[int, Sequence[ClientId]] = field(default_factory=dict)
    ages: Sequence[int] = ()
    away_seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """Make the state after a round durable, with the machine's snapshot; then call ``Machine.proceed``."""

    round: int
    state: State
    tally: Tally
    snapshot: str
    at: float


@dataclass(frozen=True)
class Finish:
    """Write the final files: no further round opens.

    Attributes:
        reason: why: all rounds are done (a used-up budget ends the rounds early, too), every client has declined, or,
            with ``Policy.firm``, too many have declined for a quorum.
    """

    reason: str


Command = Send | Receipt | Stop | Checkpoint | Finish
