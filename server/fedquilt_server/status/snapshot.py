"""The status of a run for the page, the API and the metrics: an immutable record, replaced at each change."""

from __future__ import annotations

import threading
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_server.status.results import RoundResult

RunPhase = Literal["waiting", "sending", "training", "averaging", "evaluating", "finished", "failed", "stopped"]
ENDED: Final[frozenset[RunPhase]] = frozenset({"finished", "failed", "stopped"})
"""The phases after which a run does not go on by itself."""


CLIENT_FAILED: Final = "the client failed: "
"""Prefix of a rejection's reason if the client could not do its task."""


class BoardStatus(BaseModel):
    """The latest state of one agent. Memory in bytes, temperature in degrees Celsius, power in watts."""

    model_config = ConfigDict(frozen=True)

    agent: str
    kind: str = "generic"
    online: bool = True
    clients: list[int] = Field(default_factory=list)
    cores: int = 0
    memory_total: int = 0
    memory_used: int | None = None
    temperature: float | None = None
    power: float | None = None
    training: dict[int, float] = Field(default_factory=dict, description="client -> training progress from 0 to 1")
    last_seen: float = Field(default=0.0, description="Unix time of the last message")


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
    replies: int = Field(default=0, description="replies accepted in this exchange")
    awaited: list[int] = Field(
        default_factory=list,
        description="clients that have not replied in this exchange; before a round, those that are not connected",
    )
    failing: int = Field(
        default=0, description="clients whose last answer to this exchange was a failure or a reply refused for good"
    )
    failures: dict[int, str] = Field(default_factory=dict, description="first failing clients -> reason")
    deadline: float | None = Field(default=None, description="Unix time at which the exchange closes with a quorum")
    started_at: float = 0.0
    boards: list[BoardStatus] = Field(default_factory=list)
    history: list[RoundResult] = Field(default_factory=list)
    accepted: int = Field(default=0, description="accepted replies, in all rounds")
    late: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejections: list[RejectedReply] = Field(default_factory=list, description="the latest rejections, newest first")

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

    def update(self, **changes: object) -> None:
        """Replace the snapshot with a copy that has ``changes`` and the next version number."""
        with self._lock:
            version = self._snapshot.version + 1
            self._snapshot = self._snapshot.model_copy(update={**changes, "version": version})
