"""The messages in which an agent reports its state and its failures, and warnings for its log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fedquilt_client.energy import EnergyReading
from fedquilt_client.hardware import Vitals
from fedquilt_common.training_jobs import Job
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.messages import FailedMessage, NoticeMessage, Telemetry
from fedquilt_common.wire.texts import shorten_text

_SHOWN: Final = 8
"""Clients that a warning lists."""
MOST_NOTICES: Final = 5
"""Notices that an agent publishes within ``NOTICE_SECONDS``."""
NOTICE_SECONDS: Final = 60.0
ReportFailure = Callable[[str, int, ExchangeId, str, bool], None]
"""Publishes that a client cannot do its task: (run, client, round and exchange, reason, whether it declines)."""
ReportNotice = Callable[[str, str, Job, str], None]
"""Publishes that something happened to a job: (kind, text, job, run)."""


class NoticeLimit:
    """Limits how many notices an agent publishes, so that one whose training fails in a loop does not flood."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_NOTICES)

    def allows(self, now: float) -> bool:
        """Whether one more notice may be published at ``now``, in monotonic seconds; if so, it counts."""
        if len(self._times) == MOST_NOTICES and now - self._times[0] < NOTICE_SECONDS:
            return False
        self._times.append(now)
        return True


def telemetry_message(
    agent: str, boot: int, now: Vitals, energy: EnergyReading, progress: Mapping[int, float], interval: float
) -> Telemetry:
    """Return a message with the board's sensors and the progress of its clients.

    Args:
        agent: the agent's name.
        boot: number of the agent's start; later starts have larger numbers.
        now: the sensors' readings.
        energy: the board's power and energy.
        progress: of each client in training, the part that is done, in [0, 1].
        interval: seconds until the next message at the latest.
    """
    return Telemetry(
        agent=agent,
        boot=boot,
        memory_used=now.memory_used,
        memory_own=now.memory_own,
        load=now.load,
        temperature=now.temperature,
        power=energy.watts,
        joules=energy.joules,
        power_source=energy.source,
        throttled=now.throttled,
        training={str(client): value for client, value in progress.items()},
        interval=interval,
    )


def failure_message(
    agent: str, run: str, client: int, exchange: ExchangeId, reason: str, *, declined: bool = False
) -> FailedMessage:
    """Return a message that a client's task failed; ``reason`` is cut to what it can hold."""
    round, number = exchange
    return FailedMessage(
        agent=agent, run=run, client=client, round=round, exchange=number, reason=shorten_text(reason),
        declined=declined,
    )  # fmt: skip


def notice_message(agent: str, boot: int, kind: str, text: str, job: Job, run: str) -> NoticeMessage:
    """Return a message that something happened to the training of a job; ``text`` is cut to 500 characters."""
    return NoticeMessage(
        agent=agent, boot=boot, kind=kind, text=shorten_text(text),
        run=run, client=job.client, round=job.round, exchange=job.exchange,
    )  # fmt: skip


def out_of_memory_message(job: Job, need: int, limit: int) -> str:
    """Return the log's warning that training ran out of memory, with the board's new limit.

    Args:
        job: the task that was killed.
        need: estimated bytes of its training.
        limit: bytes that a sub-model may need from now on.
    """
    return (
        f"client {job.client}, round {job.round}: training was killed: out of memory, with an estimated need of "
        f"{need / 2**20:.0f} MiB; from now on this board trains only sub-models below {limit / 2**20:.0f} MiB"
    )


def lost_memory_message(lost: Mapping[int, int]) -> str:
    """Return the warning that clients train without the private memory that they had.

    Args:
        lost: the clients, each with the round after which its memory is missing.
    """
    named = [f"client {client} after round {round}" for client, round in sorted(lost.items())]
    return (
        f"the private memory of {_list_some(named)} is missing; they train without it, so the run may end with another "
        "model"
    )


def unused_clients_message(run: str, count: int, clients: Iterable[int]) -> str:
    """Return the log's warning that an experiment does not have some clients of this agent; empty if it has all.

    Args:
        run: identifier of the run.
        count: clients of the experiment, which are numbered from 0.
        clients: clients of this agent.
    """
    unused = [client for client in clients if client >= count]
    if not unused:
        return ""
    return (
        f"the experiment of run {run} has clients 0 to {count - 1} only, so this agent's clients {_list_some(unused)} "
        "get no tasks: change `clients` of this agent, or `data.clients` in the experiment"
    )


def _list_some(named: Sequence[object]) -> str:
    more = len(named) - _SHOWN
    return ", ".join(map(str, named[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
