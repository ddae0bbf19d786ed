"""What an agent says of itself while it works, and to its owner when something goes wrong."""

from __future__ import annotations

from collections.abc import Mapping

from fedquilt_client.hardware import Vitals
from fedquilt_client.worker import Job
from fedquilt_common.wire.messages import FailedMessage, Telemetry


def telemetry_message(agent: str, boot: int, now: Vitals, progress: Mapping[int, float]) -> Telemetry:
    """How the board fares and how far its clients are."""
    return Telemetry(
        agent=agent,
        boot=boot,
        memory_used=now.memory_used,
        temperature=now.temperature,
        power=now.power,
        training={str(client): value for client, value in progress.items()},
    )


def failure_message(agent: str, run: str, job: Job, reason: str) -> FailedMessage:
    """A task that cannot be done."""
    return FailedMessage(
        agent=agent, run=run, client=job.client, round=job.round, exchange=job.exchange, reason=reason[:500]
    )


def out_of_memory_message(job: Job, need: int, limit: int) -> str:
    """For the log: training was killed for memory, and what follows from it."""
    return (
        f"client {job.client}, round {job.round}: training was ended for want of memory although it was estimated to "
        f"need {need / 2**20:.0f} MiB only; from now on this board trains sub-models below {limit / 2**20:.0f} MiB"
    )
