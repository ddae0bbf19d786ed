"""Detect a run that cannot continue, because too many clients failed for a quorum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedquilt_common.errors import RunFailedError
from fedquilt_common.experiment.sections import Participation
from fedquilt_common.plurals import plural
from fedquilt_server.status.run_file_names import LOGS
from fedquilt_server.status.snapshot import CLIENT_FAILED, Snapshot
from fedquilt_server.status.waiting import ranges


def can_reach_quorum(tasks: int, failing: int, quorum: int) -> bool:
    """Whether the clients that can still reply are enough to close an exchange.

    Args:
        tasks: clients with a task.
        failing: clients whose last answer was a failure; the others have replied, or may still reply.
        quorum: replies that close the exchange after its deadline; fewer if fewer clients have a task.
    """
    return tasks - failing >= min(quorum, tasks)


def can_replace(connected: int, failing: int, quorum: int) -> bool:
    """Whether the round can start again without the failing clients: enough others are connected."""
    return connected - failing >= quorum


def stall_advice(folder: Path) -> str:
    """Return what a person can do about a run that has stalled: sentences without the last full stop.

    Args:
        folder: the run folder; that of a simulation has the agents' logs.
    """
    logs = folder / LOGS
    place = f"in {logs}" if logs.is_dir() else "on its board (`journalctl -u fedquilt-agent`)"
    return (
        f"The log of each agent is {place}. Repair the cause, and run the same command again (`fedquilt coordinator` "
        "with --resume). To change the experiment, choose another --out"
    )


def _connected(snapshot: Snapshot) -> int:
    return len({client for board in snapshot.boards if board.online for client in board.clients})


@dataclass
class StallDetector:
    """Checks the snapshots of a run, one after the other.

    Args:
        participation: the quorum, and what happens without it.
        patience: seconds without progress after which the run has stalled. It must be long enough for a restarted agent
            to retry its task.
        advice: what a person can do; sentences that follow the reason, without the last full stop.
    """

    participation: Participation
    patience: float
    advice: str
    _progress: object = None
    _since: float = 0.0

    def check(self, snapshot: Snapshot, now: float) -> None:
        """Check one snapshot. ``now``: seconds in which the coordinator has listened.

        Raises:
            RunFailedError: clients failed, and the remaining ones cannot reach the quorum.
        """
        progress = snapshot.round, snapshot.exchange, snapshot.replies, snapshot.failing
        quorum = min(self.participation.quorum, snapshot.wanted or self.participation.quorum)
        possible = can_reach_quorum(snapshot.tasks, snapshot.failing, quorum)
        if self.participation.shortfall == "replace":
            possible = possible or can_replace(_connected(snapshot), snapshot.failing, quorum)
        if possible or progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since >= self.patience:
            raise RunFailedError(f"{_describe(snapshot, quorum)}. {self.advice}")


def _describe(snapshot: Snapshot, quorum: int) -> str:
    clients: dict[str, list[int]] = {}
    for client, reason in snapshot.failures.items():
        clients.setdefault(reason.removeprefix(CLIENT_FAILED), []).append(client)
    shown = "; ".join(f"{plural('client', len(ids))} {ranges(ids)}: {reason}" for reason, ids in clients.items())
    some = "such as " if snapshot.failing > len(snapshot.failures) else ""
    return (
        f"round {snapshot.round} cannot reach its quorum of {min(quorum, snapshot.tasks)}: {snapshot.failing} of "
        f"{snapshot.tasks} clients failed ({some}{shown})"
    )
