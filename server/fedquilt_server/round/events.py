"""What happens to the machine, and what it wants done. Events are JSON in the journal; commands are not kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedquilt_common.algorithm_api import State, Task
from fedquilt_common.types import ClientId, ExchangeId, Profile
from fedquilt_common.wire.messages import Outcome


@dataclass(frozen=True)
class Joined:
    """An agent is there. ``boot`` grows with each start of the agent; ``at`` is Unix time in seconds."""

    at: float
    agent: str
    boot: int
    clients: tuple[ClientId, ...]
    workers: int = 1
    profile: Profile = field(default_factory=Profile)


@dataclass(frozen=True)
class Left:
    """An agent's last will: it is gone. Ignored when a later boot has joined since."""

    at: float
    agent: str
    boot: int


@dataclass(frozen=True)
class Replied:
    """A reply that is whole, verified and on disk as blob ``digest``. ``payload``: bytes of the payloads in which it
    came, repeated ones included."""

    at: float
    agent: str
    client: ClientId
    round: int
    exchange: int
    digest: str
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    payload: int = 0


@dataclass(frozen=True)
class Rejected:
    """Something an agent sent that cannot count. ``outcome`` says in which column of the report it stands."""

    at: float
    agent: str
    client: ClientId | None
    round: int
    reason: str
    outcome: Outcome = "rejected"


@dataclass(frozen=True)
class Resumed:
    """The coordinator is back after a crash: an open exchange gets its whole time again."""

    at: float


@dataclass(frozen=True)
class Ticked:
    """Time passed; sent when ``Machine.wake_at`` is reached."""

    at: float


Event = Joined | Left | Replied | Rejected | Resumed | Ticked
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Joined, Left, Replied, Rejected, Resumed, Ticked)}


def encode_event(event: Event) -> tuple[str, str]:
    """Kind and JSON body."""
    return type(event).__name__, json.dumps(asdict(event), separators=(",", ":"), allow_nan=False)


def decode_event(kind: str, body: str) -> Event:
    """The event that ``encode_event`` wrote."""
    fields = json.loads(body)
    if kind == "Joined":
        fields["clients"] = tuple(fields["clients"])
        fields["profile"] = Profile(**fields["profile"])
    event: Event = _KINDS[kind](**fields)
    return event


@dataclass(frozen=True)
class Send:
    """Open an exchange: publish these tasks. ``deadline`` is Unix time in seconds; ``since``: per client its last reply
    that counts."""

    round: int
    exchange: int
    tasks: Mapping[ClientId, Task]
    deadline: float | None
    since: Mapping[ClientId, ExchangeId] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """Tell the agent what became of a reply."""

    agent: str
    client: ClientId
    round: int
    exchange: int
    digest: str
    outcome: Outcome
    reason: str = ""
    damaged: bool = False


@dataclass(frozen=True)
class Stop:
    """An exchange has closed without these clients: tell them."""

    round: int
    exchange: int
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Tally:
    """What a finished round counted: ``clients`` and ``asked`` in its first exchange, ``replies`` in all of them.
    ``train_seconds`` is that of the busiest agent, its workers shared out."""

    clients: int
    asked: int
    late: int
    rejected: int
    duplicates: int
    train_seconds: float
    opened_at: float
    replies: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """Round ``round`` is done: keep this state and the machine's snapshot, then let the machine ``proceed``.

    ``at`` is when the last exchange closed.
    """

    round: int
    state: State
    tally: Tally
    snapshot: str
    at: float


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    reason: str


Command = Send | Receipt | Stop | Checkpoint | Finish
