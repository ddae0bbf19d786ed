"""A run as its ``result.json`` holds it, in the form in which programs show a run. Pure."""

from __future__ import annotations

from typing import Final

from fedquilt_server.status.results import Result, RunStatus
from fedquilt_server.status.snapshot import RunPhase, Snapshot

_PHASES: Final[dict[RunStatus, RunPhase]] = {"finished": "finished", "failed": "failed", "stopped": "stopped"}


def recorded_snapshot(result: Result, rounds: int) -> Snapshot:
    """Return what ``result.json`` holds, as a snapshot.

    Args:
        result: the file.
        rounds: number of rounds of the experiment.
    """
    done = result.rounds[-1].round if result.rounds else 0
    return Snapshot(
        version=done,
        name=result.name,
        run=result.run,
        algorithm=result.algorithm,
        dataset=result.dataset,
        phase=_PHASES.get(result.status, "training"),
        message=result.reason,
        warning=result.warnings[0] if result.warnings else "",
        broker_connected=True,
        round=done,
        rounds=max(rounds, done),
        history=result.rounds,
        privacy=result.privacy,
        accepted=sum(row.replies for row in result.rounds),
        late=sum(row.late for row in result.rounds),
        rejected=sum(row.rejected for row in result.rounds),
        duplicates=sum(row.duplicates for row in result.rounds),
    )
