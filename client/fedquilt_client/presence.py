"""An agent's own presence at the broker: nobody may show it as offline, and no other agent may use its id."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from fedquilt_common.wire.connection_errors import explain_refused_presence
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import PublicationRefused, Transport

log = logging.getLogger(__name__)

WILL_DELAY: Final = 20
"""Seconds after which the broker publishes an agent's will: more than a restart of the agent takes."""
RESTORE_SECONDS: Final = 30.0
"""Seconds between two times that an agent publishes its presence again because its replies are rejected."""
MOST_OTHERS: Final = 8
"""Other agents with the same id that are reported and answered."""


class OwnPresence:
    """Publishes a presence, and watches its topic.

    Args:
        transport: the connection to the broker.
        topics: of the federation.
        make: returns the presence.
    """

    def __init__(self, transport: Transport, topics: Topics, make: Callable[[], AgentPresence]) -> None:
        self._transport = transport
        self._topics = topics
        self._make = make
        self._announced = self._cleared = self._refusal_reported = False
        self._others: set[str] = set()
        self._replaced = False
        self._restored_at = -math.inf

    def connect(self) -> None:
        """Publish it after a connection: the broker may have lost it."""
        self._announced = self._cleared = False
        self.publish()

    def publish(self) -> None:
        """Publish it, retained."""
        presence = self._make()
        self._transport.publish(self._topics.presence(presence.agent), presence.encode(), retain=True)

    def note_cleared(self) -> None:
        """Note that somebody has cleared it."""
        self._cleared = True

    def restore(self) -> None:
        """Publish it again if it was cleared; call it now and then: whoever clears it may clear it each time."""
        if self._cleared:
            self._cleared = False
            self.publish()

    def note_rejected(self, now: float) -> None:
        """Publish it again after a reply was rejected, if another one replaced it on the topic; not too often.

        The last presence that the coordinator has received counts for as long as any agent with this id sends anything.

        Args:
            now: monotonic seconds.
        """
        if self._replaced and now - self._restored_at >= RESTORE_SECONDS:
            self._restored_at = now
            self.publish()

    def note_refused(self, refused: PublicationRefused) -> None:
        """Log once why the broker refuses it; the ACL may name this agent later."""
        agent = self._make().agent
        if refused.topic != self._topics.presence(agent) or self._refusal_reported:
            return
        self._refusal_reported = True
        own = f"--id (it is {agent}; the broker lets each user write as itself only)"
        files = f"--federation (it is {self._topics.federation}), --cert and --key (those of {agent})"
        log.error("%s", explain_refused_presence(refused, "agent", f"{own}, {files}"))

    def take(self, presence: AgentPresence) -> None:
        """Handle what arrived on its topic."""
        own = self._make()
        is_own = (presence.instance, presence.boot) == (own.instance, own.boot)
        self._replaced = presence.online and not is_own
        if presence.online and is_own:
            self._announced = True
        elif not presence.online and self._announced:  # a late will, or another agent with this id has left
            self.publish()
        elif presence.online and not _is_past_of(own, presence) and len(self._others) < MOST_OTHERS:
            self._report_other(presence)

    def _report_other(self, presence: AgentPresence) -> None:
        """Log another agent with this id once, and answer it once, so that it finds out, too."""
        other = f"{presence.instance}-{presence.boot}"
        if other not in self._others:
            self._others.add(other)
            machine = presence.profile.machine or "a machine that does not report its name"
            log.error(
                "another agent uses the id %s: on %s, started as %d. Give each board its own --id and --state",
                presence.agent, machine, presence.boot,
            )  # fmt: skip
            self.publish()


def _is_past_of(own: AgentPresence, other: AgentPresence) -> bool:
    """Whether an earlier process of this state folder may have published a presence."""
    return other.instance in ("", own.instance) and other.boot < own.boot
