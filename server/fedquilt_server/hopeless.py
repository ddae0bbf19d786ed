"""When a simulated run can no longer go on: nobody is there who would mend what makes its clients fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import RunFailedError
from fedquilt_common.sections import Participation
from fedquilt_server.snapshot import CLIENT_FAILED, Snapshot

SECONDS: Final = 10.0
"""For so long nothing else must have come: an agent that is started again tries once more."""


@dataclass
class Hopeless:
    """Looks at one snapshot after the other."""

    participation: Participation
    _seen: object = None
    _since: float = 0.0

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Raises RunFailedError once so many clients of the round have failed that the others are no quorum.

        A coordinator by itself waits: on a real board, whatever is missing can be put there.
        """
        failed = {
            one.client: one.reason
            for one in reversed(snapshot.rejections)
            if one.round == snapshot.round and one.reason.startswith(CLIENT_FAILED)
        }
        left = snapshot.tasks - len(failed)
        seen = snapshot.round, snapshot.exchange, snapshot.replies, frozenset(failed)
        alive = snapshot.replies + len(failed) > snapshot.tasks or left >= self.participation.quorum
        if not failed or alive or self.participation.shortfall == "replace" or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since >= SECONDS:
            client, reason = next(iter(failed.items()))
            who = f"{len(failed)} of {snapshot.tasks} clients failed, such as client {client}"
            raise RunFailedError(
                f"round {snapshot.round} can never be closed: {who}: {reason.removeprefix(CLIENT_FAILED)}. "
                "Correct the experiment, and choose another --out"
            )
