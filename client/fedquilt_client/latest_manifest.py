"""Decides which manifest an agent or a site's relay follows: one rule, which also lets a coordinator go back."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_client.tasks import has_same_tasks
from fedquilt_common.wire.round_messages import RoundMessage


@dataclass
class LatestManifest:
    """The manifest of a run that is followed.

    Attributes:
        message: the manifest; None before the first.
        has_new_tasks: whether its tasks differ from those of the one before.
        may_go_back: the coordinator may have restarted since its last manifest, so the next one may be of an earlier
            round. A manifest that the broker retained may be older than the restart, so it leaves this as it is.
    """

    message: RoundMessage | None = None
    has_new_tasks: bool = False
    may_go_back: bool = True

    def take(self, message: RoundMessage, *, retained: bool) -> bool:
        """Follow a manifest from now on, unless it is old: a broker that restarts may have lost its newest messages.

        Args:
            message: a manifest of the run.
            retained: the broker had stored it, so the coordinator may have published newer messages before.

        Returns:
            Whether it is followed.
        """
        before = self.message
        if before is not None and message.round < before.round and not self.may_go_back:
            return False
        self.may_go_back = self.may_go_back and retained
        self.has_new_tasks = before is None or not has_same_tasks(before, message)
        self.message = message
        return True
