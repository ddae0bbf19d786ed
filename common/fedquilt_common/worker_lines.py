"""The lines that a training process and its agent, or a replay, write to each other besides jobs, as JSON."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedquilt_common.training_jobs import Spending


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")


class _LineOfJob(_Line):
    """A line of a training process. ``number`` is that of its job."""

    number: int


class TrainingLine(_LineOfJob):
    """Training begins, and needs up to ``need`` bytes."""

    event: Literal["training"] = "training"
    need: int


class ProgressLine(_LineOfJob):
    """How far the job is, from 0 to 1."""

    event: Literal["progress"] = "progress"
    value: float


class TrainedLine(_LineOfJob):
    """A task is done; the process waits for an ``EnergyLine``."""

    event: Literal["trained"] = "trained"


class DoneLine(_LineOfJob):
    """The job is done, and its files are written.

    Attributes:
        digest: of the reply, which has ``size`` bytes.
        memory: the digest of the client's new private memory; None if the memory is unchanged.
        head: bytes of the reply that are the head of soft labels.
        memoryless: whether it is sure that the run's clients keep nothing from task to task.
        spent: what the ledger must record before the reply leaves the board; None: nothing.
        done: of a joint job, how many of its tasks, from the first on.
    """

    event: Literal["done"] = "done"
    digest: str
    size: int
    memory: str | None = None
    head: int = 0
    memoryless: bool
    spent: Spending | None = None
    done: int = 0


class CancelledLine(_LineOfJob):
    """The job was cancelled, and has ended."""

    event: Literal["cancelled"] = "cancelled"


class MemoryLine(_LineOfJob):
    """The job ran out of memory."""

    event: Literal["memory"] = "memory"


class DamagedLine(_LineOfJob):
    """The job was not begun: a patch or a private memory at ``path`` does not have its digest."""

    event: Literal["damaged"] = "damaged"
    path: str


class FailedLine(_LineOfJob):
    """The job cannot be done.

    Attributes:
        reason: a text for people.
        cause: ``disk`` if a file could not be read or written: the same job may succeed later. ``declined`` if the
            client's privacy budget, or its board's owner, does not allow it: the client does no task of the run any
            more. Otherwise empty.
    """

    event: Literal["failed"] = "failed"
    reason: str
    cause: Literal["", "disk", "declined"] = ""


FailureLine = MemoryLine | DamagedLine | FailedLine
LastLine = DoneLine | CancelledLine | FailureLine
"""The last line about a job."""
ProcessLine = TrainingLine | ProgressLine | TrainedLine | LastLine
_PROCESS_LINE: Final[TypeAdapter[ProcessLine]] = TypeAdapter(Annotated[ProcessLine, Field(discriminator="event")])


class CancelLine(_Line):
    """A line of the agent: abort the job of this number."""

    cancel: int


class EnergyLine(_Line):
    """A line of the agent: the joules that job number ``energy`` has used so far; None if they are unknown."""

    energy: int
    joules: float | None


_AGENT_LINE: Final[TypeAdapter[CancelLine | EnergyLine]] = TypeAdapter(CancelLine | EnergyLine)


def parse_process_line(line: str) -> ProcessLine:
    """Parse a line of a training process.

    Raises:
        ValueError: it is not complete.
    """
    return _PROCESS_LINE.validate_json(line)


def parse_agent_line(line: str) -> CancelLine | EnergyLine:
    """Parse a line of the agent that is not a job.

    Raises:
        ValueError: it is not complete.
    """
    return _AGENT_LINE.validate_json(line)
