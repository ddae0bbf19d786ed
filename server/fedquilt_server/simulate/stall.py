"""Detect a simulated run that cannot continue, because too many clients failed for a quorum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import RunFailedError
from fedquilt_common.experiment.sections import Participation
from fedquilt_server.status.snapshot import CLIENT_FAILED, Snapshot

STALL_SECONDS: Final = 10.0
"""The run has stalled after this time without progress. It is long enough for a restarted agent to retry its task."""


@dataclass
class StallDetector:
    """Checks the snapshots of a run, one after the other."""

    participation: Participation
    _progress: object = None
    _since: float = 0.0

    def check(self, snapshot: Snapshot, now: float) -> None:
        """Check one snapshot. ``now``: monotonic seconds.

        A coordinator without a simulation waits instead: on a real board, a user can repair the cause.

        Raises:
            RunFailedError: clients failed, and the remaining ones cannot reach the quorum.
        """
        progress = snapshot.round, snapshot.exchange, snapshot.replies, snapshot.failing
        quorum_possible = snapshot.tasks - snapshot.failing >= self.participation.quorum
        replaces = self.participation.shortfall == "replace"
        if not snapshot.failing or quorum_possible or replaces or progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since >= STALL_SECONDS:
            raise RunFailedError(_error_message(snapshot))


def _error_message(snapshot: Snapshot) -> str:
    failure = next((reply for reply in snapshot.rejections if reply.reason.startswith(CLIENT_FAILED)), None)
    example = f", such as client {failure.client}: {failure.reason.removeprefix(CLIENT_FAILED)}" if failure else ""
    return (
        f"round {snapshot.round} cannot reach its quorum: {snapshot.failing} of {snapshot.tasks} clients "
        f"failed{example}. Correct the experiment and choose another --out"
    )
