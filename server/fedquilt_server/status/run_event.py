"""Events of a run for people: one line of ``events.jsonl``, one row of the page's list of events."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

EventKind = Literal[
    "started", "joined", "back", "restarted", "silent", "left", "late", "rejected", "declined", "out of memory",
    "too small", "memory lost", "notice", "recovered", "round restarted", "deadline", "skipped", "diverged", "paused",
    "continued", "stopping", "dropped", "readmitted", "finished", "failed", "stopped", "cut off", "site cut off",
    "moved",
]  # fmt: skip
EventLevel = Literal["info", "warning", "error"]

LEVELS: Final[dict[EventKind, EventLevel]] = {
    "started": "info",
    "joined": "info",
    "back": "info",
    "restarted": "warning",
    "silent": "warning",
    "cut off": "warning",
    "site cut off": "warning",
    "moved": "warning",
    "left": "warning",
    "late": "warning",
    "rejected": "error",
    "declined": "warning",
    "out of memory": "warning",
    "too small": "warning",
    "memory lost": "warning",
    "notice": "warning",
    "recovered": "info",
    "round restarted": "warning",
    "deadline": "warning",
    "skipped": "warning",
    "diverged": "error",
    "paused": "info",
    "continued": "info",
    "stopping": "info",
    "dropped": "warning",
    "readmitted": "info",
    "finished": "info",
    "failed": "error",
    "stopped": "warning",
}


class RunEvent(BaseModel):
    """Something that happened in a run.

    Attributes:
        seq: number of the journal's event that it reports; None if the journal does not hold it.
        at: Unix time in seconds.
        board: the agent; None for the coordinator and the run.
    """

    model_config = ConfigDict(frozen=True)

    seq: int | None = Field(default=None, description="number of the journal's event; null if the journal has none")
    at: float = Field(description="Unix time in seconds")
    kind: EventKind
    level: EventLevel = "info"
    board: str | None = None
    client: int | None = None
    round: int = Field(default=0, description="the open round, or the next one")
    exchange: int | None = None
    text: str = Field(description="one sentence for people")
