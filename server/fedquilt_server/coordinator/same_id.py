"""Finds out that two agents use one id: one of them still reports after the other one has replaced it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fedquilt_common.flood_control.limits import MOST_AGENTS
from fedquilt_common.wire.messages import AgentPresence, ProfileMessage

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 10.0
"""Messages that arrive later than this after a replacement were sent after it."""
COPY_RETURNS: Final = 2
"""This many returns to an earlier start show that two processes use copies of one state folder."""
_MOST_FORMER: Final = 4
_NAMELESS: Final = ProfileMessage()
_UNNAMED: Final = "a machine that does not report its name"


@dataclass
class _Id:
    """Who uses an id: the newest presence, without its clients, and when those before it were replaced.

    Attributes:
        went_back: how often a presence was of an earlier start than the one before it.
    """

    presence: AgentPresence
    former: list[tuple[AgentPresence, float]] = field(default_factory=list)
    went_back: int = 0
    reported: bool = False


class SameId:
    """Watches which agents use one id.

    Args:
        refuse: reports a reason for an agent; called once for each id.
    """

    def __init__(self, refuse: Callable[[str, str], None]) -> None:
        self._refuse = refuse
        self._ids: dict[str, _Id] = {}

    def arrive(self, presence: AgentPresence, now: float) -> None:
        """Note the presence of an agent that is online; ``now`` in seconds."""
        presence = presence.model_copy(update={"clients": []})
        found = self._ids.get(presence.agent)
        if found is None:
            if len(self._ids) < MOST_AGENTS:
                self._ids[presence.agent] = _Id(presence)
            return
        before, found.presence = found.presence, presence
        if presence.instance == before.instance and presence.boot < before.boot:
            self._go_back(found, before)
        if _source(before) != _source(presence):
            former = [(p, at) for p, at in found.former if not _is_same(p, presence)]
            self._find(
                found, lambda p, _: bool(p.instance) and p.instance == presence.instance != before.instance, before
            )
            found.former = [*former, (before, now)][-_MOST_FORMER:]

    def note_message(self, agent: str, boot: int, now: float) -> None:
        """Note that an agent which started as ``boot`` has sent telemetry."""
        found = self._ids.get(agent)
        if found is not None and boot != found.presence.boot:
            if not any(former.boot == boot for former, _ in found.former):  # it was replaced before this process began
                unknown = found.presence.model_copy(update={"boot": boot, "instance": "", "profile": _NAMELESS})
                found.former = [*found.former, (unknown, now)][-_MOST_FORMER:]
            self._find(found, lambda p, at: p.boot == boot and now - at >= SETTLE_SECONDS, found.presence)

    def start_listening(self, now: float) -> None:
        """Expect messages again that had arrived before the connection was lost."""
        for found in self._ids.values():
            found.former = [(presence, now) for presence, _ in found.former]

    def _go_back(self, found: _Id, before: AgentPresence) -> None:
        """Report copies of one state folder, which take the broker's session from each other.

        A folder that was put back to an earlier state starts once with a smaller number.
        """
        found.went_back += 1
        if found.went_back >= COPY_RETURNS:
            self._report(found, "copies of one state folder are in use with the id", before, found.presence)

    def _find(self, found: _Id, lives: Callable[[AgentPresence, float], bool], other: AgentPresence) -> None:
        """Report the first former presence that is shown to live beside ``other``."""
        former = next((presence for presence, at in found.former if lives(presence, at)), None)
        if former is not None:
            self._report(found, "two agents use the id", former, other)

    def _report(self, found: _Id, what: str, one: AgentPresence, other: AgentPresence) -> None:
        """Report, once for an id, which two machines use it."""
        if not found.reported:
            found.reported = True
            machines = [presence.profile.machine or _UNNAMED for presence in (one, other)]
            reason = (
                f"{what} {one.agent}: on {machines[0]} and on {machines[1]}. Give each board its own --id and --state"
            )
            log.warning("%s", reason)
            self._refuse(one.agent, reason)


def _is_same(one: AgentPresence, other: AgentPresence) -> bool:
    """Whether two presences are of one start of an agent; ``one`` may have no instance."""
    return one.boot == other.boot and (not one.instance or one.instance == other.instance)


def _source(presence: AgentPresence) -> tuple[str, int]:
    return presence.instance, presence.boot
