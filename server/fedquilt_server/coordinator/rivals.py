"""Finds out that another coordinator works in the federation, which carries one run at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedquilt_common.errors import FederationInUseError
from fedquilt_common.wire.messages import CoordinatorPresence, parse
from fedquilt_common.wire.transport import MqttMessage

log = logging.getLogger(__name__)


class Rivals:
    """Watches the presence of other coordinators; the one that was there first stays.

    Args:
        run: identifier of the own run.
        federation: its name, for the message.
        answer: publishes the own presence.
        announce: publishes everything that the broker retains of the own run.
    """

    def __init__(self, run: str, federation: str, answer: Callable[[], None], announce: Callable[[], None]) -> None:
        self._run = run
        self._federation = federation
        self._answer = answer
        self._announce = announce
        self._found: set[str] = set()
        self._answered: set[str] = set()

    def take(self, message: MqttMessage) -> None:
        """Handle a presence on the coordinator's topic.

        Raises:
            FederationInUseError: a coordinator that was here before this one is connected.
        """
        presence = parse(CoordinatorPresence, message.payload, message.topic)
        if presence.run is None or presence.run == self._run:
            return
        if message.retained:
            self._note(presence)
        elif presence.online:
            self._meet(presence.run)
        else:
            log.warning("the coordinator of run %s has left: publishing this run again", presence.run)
            self._announce()

    def _note(self, presence: CoordinatorPresence) -> None:
        """Note who was here first; a message will show whether that one still lives."""
        if presence.online and presence.run is not None:
            self._found.add(presence.run)

    def _meet(self, run: str) -> None:
        """Leave if the other coordinator was here first; otherwise show it that this one is."""
        if run in self._found or (run in self._answered and run < self._run):
            raise FederationInUseError(
                f"the coordinator of run {run} works in the federation {self._federation}, which carries one run at a "
                "time: stop it, or choose another --federation for coordinator and agents"
            )
        if run not in self._answered:
            log.warning("another coordinator, of run %s, has connected to the federation %s", run, self._federation)
            self._answered.add(run)
            self._answer()
