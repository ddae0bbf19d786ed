"""One reply of one client: a row of ``replies.csv`` and a bar of the page's timeline."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ReplyOutcome = Literal["accepted", "late", "duplicate", "rejected", "missing", "discarded"]


class ReplyRow(BaseModel):
    """What became of one task of one client. Times are Unix times in seconds; None means not known.

    A reply's time divides into receiving (from ``opened_at`` until training begins), training (``train_seconds``, until
    ``began_at``), sending (until ``arrived_at``) and waiting (until ``closed_at``).
    """

    model_config = ConfigDict(frozen=True)

    round: int
    exchange: int | None = Field(default=None, description="number within the round, from 0; null if not known")
    client: int | None = None
    agent: str
    level: str | None = Field(default=None, description="width or level of the sub-model that the client trained")
    params: int | None = Field(default=None, description="parameters of that sub-model")
    flops: int | None = Field(default=None, description="its multiply-accumulate operations for one sample, forward")
    samples: float | None = Field(default=None, description="the client's weight: its training samples, as a rule")
    loss: float | None = None
    accuracy: float | None = None
    train_seconds: float | None = None
    bytes: int | None = Field(default=None, description="payload bytes, repeated chunks included")
    memory_peak: int | None = Field(default=None, description="peak memory of the training process in bytes")
    gpu_memory_peak: int | None = Field(
        default=None, description="most bytes of torch's tensors on the GPU; null without one"
    )
    joules: float | None = Field(default=None, description="energy of the board while it trained this task")
    epsilon: float | None = Field(default=None, description="privacy spent on the client's samples, with this task")
    outcome: ReplyOutcome = Field(
        description="missing: not there when the exchange closed; discarded: accepted, but the round started again"
    )
    counted_round: int | None = Field(
        default=None, description="round in which it counts: that of its task, or a later one if tasks go on"
    )
    counted_exchange: int | None = Field(default=None, description="exchange in which it counts")
    opened_at: float | None = Field(default=None, description="when the exchange opened in which it counts")
    began_at: float | None = Field(default=None, description="when the reply's first chunk arrived")
    arrived_at: float | None = Field(default=None, description="when the reply was verified, or was refused")
    closed_at: float | None = Field(default=None, description="when that exchange closed")

    @property
    def place(self) -> tuple[int, int]:
        """Round and exchange to which the row belongs: those in which the reply counts, or those of its task."""
        if self.counted_round is None or self.counted_exchange is None:
            return self.round, self.exchange or 0
        return self.counted_round, self.counted_exchange
