"""The status of a run for the page, the API and the metrics: an immutable record, replaced at each change."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fedquilt_common.wire.message_base import MAX_CLIENTS
from fedquilt_common.wire.number_ranges import PackedNumbers, pack_numbers, unpack_numbers
from fedquilt_server.status.budget import BudgetUse
from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.placement import Placement
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import PrivacySpent, RoundResult
from fedquilt_server.status.run_event import RunEvent

RunPhase = Literal[
    "waiting", "sending", "training", "averaging", "evaluating", "finished", "failed", "stopped",
    "interrupted", "unknown", "damaged",
]  # fmt: skip
"""The last three are phases of recorded runs only: killed, written by an earlier version, with a damaged result."""
ENDED: Final[frozenset[RunPhase]] = frozenset({"finished", "failed", "stopped", "interrupted", "unknown", "damaged"})
"""The phases after which a run does not go on by itself."""


CLIENT_FAILED: Final = "the client failed: "
"""Prefix of a rejection's reason if the client could not do its task."""
CLIENT_DECLINES: Final = "the client declines: "
"""Prefix of a rejection's reason if the client does no task of the run any more."""


MOST_LISTED: Final = 1000
"""Clients of a list that JSON names one by one; a longer list has ranges."""


def _pack_long(clients: list[int]) -> PackedNumbers:
    return pack_numbers(clients) if len(clients) > MOST_LISTED else [*clients]


def _unpack(packed: Any) -> Any:
    return unpack_numbers(packed, MAX_CLIENTS) if isinstance(packed, list) else packed


ClientList = Annotated[list[int], BeforeValidator(_unpack), PlainSerializer(_pack_long, when_used="json")]
"""Numbers of clients. In JSON, a pair [first, last] stands for consecutive ones if there are more than 1,000."""
HealthState = Literal[
    "online",
    "restarted",
    "late",
    "hot",
    "throttled",
    "out of memory",
    "too small",
    "silent",
    "offline",
    "unreachable",
    "dropped",
    "never seen",
]


class BoardStatus(BaseModel):
    """The latest state of one agent. Memory in bytes, temperature in degrees Celsius, power in watts."""

    model_config = ConfigDict(frozen=True)

    agent: str
    kind: str = "generic"
    site: str = Field(default="", description="the site through whose broker it connects; empty without one")
    is_relay: bool = Field(default=False, description="whether it sends the replies of the boards behind its site")
    online: bool = Field(default=True, description="whether the broker has the agent's connection")
    health: HealthState = "online"
    reason: str = Field(default="", description="why the health is not online, for people")
    since: float = Field(default=0.0, description="Unix time since which the health is as it is")
    clients: ClientList = Field(default_factory=list)
    unnamed_clients: int = Field(
        default=0, description="its further clients: the files of a recorded run have their number only"
    )
    workers: int = Field(default=1, description="clients that it trains at the same time")
    cores: int = 0
    memory_total: int = 0
    memory_used: int | None = Field(default=None, description="of the whole board, or of the agent's control group")
    memory_own: int | None = Field(default=None, description="of the agent and its training processes")
    temperature: float | None = None
    power: float | None = None
    power_source: str = Field(default="", description="sensor, meter, or estimate (computed, not measured)")
    joules: float | None = Field(default=None, description="energy since the board connected in this run")
    load: float | None = Field(default=None, description="load average over one minute")
    throttled: int | None = Field(default=None, description="bits of a Raspberry Pi's get_throttled")
    training: dict[int, float] = Field(default_factory=dict, description="client -> training progress from 0 to 1")
    last_seen: float = Field(default=0.0, description="Unix time of the last message")
    interval: float = Field(default=30.0, description="seconds between two messages that the agent promises")
    restarts: int = Field(default=0, description="restarts of the agent during the run")
    accepted: int = Field(default=0, description="its accepted replies, including those that did not count later")
    late: int = 0
    rejected: int = 0
    placement: Placement | None = Field(default=None, description="where a cluster runs it; null without a cluster")


class RejectedReply(BaseModel):
    """One rejected reply, for the page's list of the latest rejections. ``at`` is a Unix time."""

    model_config = ConfigDict(frozen=True)

    at: float
    agent: str
    client: int | None
    round: int
    reason: str


class Snapshot(BaseModel):
    """The state of the run at one moment."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(default=0, description="grows with every change")
    name: str = ""
    run: str = ""
    algorithm: str = ""
    dataset: str = ""
    phase: RunPhase = "waiting"
    message: str = ""
    broker_connected: bool = False
    round: int = 0
    rounds: int = 0
    exchange: int = 0
    tasks: int = Field(default=0, description="clients with a task in this exchange")
    until: int | None = Field(default=None, description="replies that close it; null: those of all clients")
    replies: int = Field(default=0, description="replies accepted in this exchange")
    awaited: ClientList = Field(
        default_factory=list,
        description="clients that have not replied in this exchange; before a round, those that are not connected. "
        "Of more than 1,000, a pair [first, last] stands for consecutive ones, here and in a board's `clients`",
    )
    failing: int = Field(
        default=0, description="clients whose last answer to this exchange was a failure or a reply refused for good"
    )
    failures: dict[int, str] = Field(default_factory=dict, description="some failing clients -> reason")
    deadline: float | None = Field(
        default=None, description="Unix time at which the open exchange closes with a quorum"
    )
    started_at: float = 0.0
    boards: list[BoardStatus] = Field(default_factory=list)
    history: list[RoundResult] = Field(default_factory=list)
    accepted: int = Field(default=0, description="accepted replies, in all rounds")
    late: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejections: list[RejectedReply] = Field(default_factory=list, description="the latest rejections, newest first")
    paused: bool = Field(default=False, description="whether a person has paused the run: no further round opens")
    stopping: bool = Field(default=False, description="whether the run ends after the open round")
    warning: str = Field(default="", description="the training has diverged, and how")
    budget: list[BudgetUse] = Field(default_factory=list, description="limits after which the run ends, and their use")
    privacy: list[PrivacySpent] = Field(default_factory=list, description="of each client with differential privacy")
    opened_at: float | None = Field(default=None, description="Unix time at which the exchange opened")
    events: list[RunEvent] = Field(default_factory=list, description="the latest events, newest first")
    reply_rows: list[ReplyRow] = Field(default_factory=list, description="replies of the latest rounds, oldest first")
    connect: str = Field(default="", description="options of `fedquilt agent` that lead to the broker and federation")
    recorded: bool = Field(default=False, description="whether it comes from the files of the run, not from a program")
    notes: list[str] = Field(default_factory=list, description="what is missing or damaged in the files of the run")
    coverage: Coverage | None = Field(default=None, exclude=True, description="big: it has a route of its own")

    @property
    def wanted(self) -> int:
        """Number of replies that close the exchange before its deadline."""
        return self.tasks if self.until is None else min(self.until, self.tasks)

    @property
    def waits(self) -> bool:
        """Whether the run waits for clients, either to connect or to reply."""
        return self.broker_connected and bool(self.awaited) and self.phase in ("waiting", "sending", "training")


class StatusStore:
    """Holds the newest snapshot. The coordinator replaces it and the web thread reads it; neither blocks the other.

    Args:
        first: the snapshot to start with; an empty one if left out.
    """

    def __init__(self, first: Snapshot | None = None) -> None:
        self._snapshot = first or Snapshot()
        self._lock = threading.Lock()

    @property
    def current(self) -> Snapshot:
        """The newest snapshot."""
        return self._snapshot

    def replace(self, snapshot: Snapshot) -> None:
        """Replace the snapshot with another one, which gets the next version number."""
        with self._lock:
            self._put(snapshot, {})

    def update(self, **changes: object) -> None:
        """Replace the snapshot with a copy that has ``changes`` and the next version number."""
        with self._lock:
            self._put(self._snapshot, changes)

    def _put(self, snapshot: Snapshot, changes: Mapping[str, object]) -> None:
        """Hold a snapshot with ``changes``; no board of a run that has ended trains."""
        fresh = snapshot.model_copy(update={**changes, "version": self._snapshot.version + 1})
        if fresh.phase in ENDED and any(board.training for board in fresh.boards):
            idle = [board.model_copy(update={"training": {}}) for board in fresh.boards]
            fresh = fresh.model_copy(update={"boards": idle})
        self._snapshot = fresh
