"""Orders the coordinators of a federation, which carries one run at a time: the one that started first stays.

A coordinator that connects publishes its presence without a start and not retained: it asks. One that works answers
with its own presence, and the new one leaves. Without an answer it chooses its start, which is later than any that it
has read. So all coordinators compute the same order from the presences alone, whatever their clocks show.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError, FederationInUseError
from fedquilt_common.wire.connection_errors import explain_refused_presence
from fedquilt_common.wire.messages import CoordinatorPresence
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage, PublicationRefused, Transport
from fedquilt_server.runs import clock

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
"""How long a coordinator waits for the answer of another one whose presence the broker retains."""
_LARGEST_START: Final = 2**63 - 1


class Rivals:
    """Publishes the own presence, and compares it with those of other coordinators.

    Args:
        topics: of the federation.
        run: identifier of the own run.
        epoch: number of the own start on the run folder.
        announce: publishes everything that the broker retains of the own run.

    Attributes:
        accepted: whether the broker has ever accepted a presence of this process.
    """

    def __init__(
        self, transport: Transport, topics: Topics, run: str, epoch: int, announce: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._topics = topics
        self._own = CoordinatorPresence(online=True, epoch=epoch, run=run)
        self._announce = announce
        self._latest = 0
        self._asked_at: float | None = None
        self._found: str | None = None
        self._is_current = False
        self.accepted = False

    @property
    def settled(self) -> bool:
        """Whether this coordinator has its start."""
        return self._own.started is not None

    def connect(self) -> None:
        """Subscribe and publish the own presence after a connection."""
        self._is_current = False
        self._found = None
        self._asked_at = clock.now()
        self._transport.subscribe([self._topics.coordinator])
        self._publish()

    def advance(self) -> None:
        """Settle if no other coordinator can object any more."""
        if self._asked_at is None or self.settled:
            return
        if (self._is_current and self._found is None) or clock.now() >= self._asked_at + ANSWER_SECONDS:
            started = min(max(int(clock.now()), self._latest + 1), _LARGEST_START)
            self._own = self._own.model_copy(update={"started": started})
            self._publish()

    def take(self, message: MqttMessage) -> None:
        """Handle a presence on the coordinator's topic.

        Raises:
            FederationInUseError: a coordinator that started before this one works in the federation, or one with a
                copy of this run's folder.
            ProtocolError: the message breaks the protocol.
        """
        presence = parse(CoordinatorPresence, message.payload, message.topic)
        if presence.run == self._own.run:
            # what arrives before the own presence was in the session's queue, and may be history
            self._is_current |= presence.epoch == self._own.epoch and not message.retained
            self._check_copy(presence)
            self.accepted |= self._is_current
        elif presence.run is not None and (message.retained or self._is_current):
            self._latest = max(self._latest, presence.started or 0)
            if message.retained:
                self._found = presence.run if presence.online else None
            elif presence.online:
                self._meet(presence)
            else:
                self._outlive(presence.run)

    def _check_copy(self, twin: CoordinatorPresence) -> None:
        """Leave if a later start of this run works with another folder: the two would train different models.

        A presence that the broker kept from before is not one: the own presence has replaced it.
        """
        own, later = (self._own.epoch, self._own.started or 0), (twin.epoch, twin.started or 0)
        if twin.online and self.settled and self.accepted and later > own:
            raise FederationInUseError(
                f"run {twin.run} was started again with a copy of this folder, and works in the federation "
                f"{self._topics.federation}. To go on with this folder, stop the other coordinator and resume this one"
            )

    def check_refusal(self, refused: PublicationRefused) -> None:
        """End if the broker refuses the first presence. A later refusal ends no run: the ACL can change back.

        Raises:
            BrokerUnreachableError: the coordinator has no right to write in the federation.
        """
        if refused.topic == self._topics.coordinator and not self.accepted:
            own = "--cert and --key (those of this federation's coordinator)"
            check = f"--federation (it is {self._topics.federation}), {own}"
            raise BrokerUnreachableError(explain_refused_presence(refused, "coordinator", check))

    def _meet(self, other: CoordinatorPresence) -> None:
        """Leave if the other coordinator started first; otherwise answer it."""
        if _order(other) < _order(self._own):
            raise FederationInUseError(
                f"the coordinator of run {other.run} works in the federation {self._topics.federation}, which carries "
                "one run at a time: stop it, or choose another --federation for coordinator and agents"
            )
        log.warning(
            "another coordinator, of run %s, has connected to the federation %s", other.run, self._topics.federation
        )
        self._publish()

    def _outlive(self, run: str) -> None:
        """Publish everything again after another coordinator has left, which may have replaced it."""
        log.warning("the coordinator of run %s has left: publishing this run again", run)
        if self._found == run:
            self._found = None
        self._publish()
        self._announce()

    def _publish(self) -> None:
        presence = self._own.model_copy(update={"time": int(clock.now())})
        self._transport.publish(self._topics.coordinator, presence.encode(), retain=self.settled)


def _order(presence: CoordinatorPresence) -> tuple[float, str]:
    """Return the place of a coordinator: by its start, without one after all others; at a tie by its run."""
    return math.inf if presence.started is None else presence.started, presence.run or ""
