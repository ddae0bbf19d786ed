"""When a simulated run can no longer go on: nobody is there who would mend what makes its clients fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import RunFailedError
from fedquilt_common.experiment.sections import Participation
from fedquilt_server.status.snapshot import CLIENT_FAILED, Snapshot

SECONDS: Final = 10.0
"""For so long nothing else must have come: an agent that is started again tries once more."""


@dataclass
class StallDetector:
    """Looks at one snapshot after the other."""

    participation: Participation
    _seen: object = None
    _since: float = 0.0

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Raises RunFailedError once so many clients of the round have failed that the others are no quorum.

        A coordinator by itself waits: on a real board, whatever is missing can be put there.
        """
        seen = snapshot.round, snapshot.exchange, snapshot.replies, snapshot.failing
        alive = snapshot.tasks - snapshot.failing >= self.participation.quorum
        if not snapshot.failing or alive or self.participation.shortfall == "replace" or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since >= SECONDS:
            raise RunFailedError(_words(snapshot))


def _words(snapshot: Snapshot) -> str:
    last = next((one for one in snapshot.rejections if one.reason.startswith(CLIENT_FAILED)), None)
    why = f", such as client {last.client}: {last.reason.removeprefix(CLIENT_FAILED)}" if last else ""
    return (
        f"round {snapshot.round} can never be closed: {snapshot.failing} of {snapshot.tasks} clients failed{why}. "
        "Correct the experiment, and choose another --out"
    )
