"""Decides which agents flood: a leaky bucket for each agent, and a mute whose length doubles.

Every message that arrives fills its agent's bucket. When a reply counts, its messages are removed again. The bucket
leaks at a constant rate. An agent whose bucket overflows is muted. All times are monotonic seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedquilt_common.wire.transport import SMALLEST_PAYLOAD

UNIT_SECONDS: Final = 1e-4
"""Approximate seconds of the coordinator's time that one unit stands for."""
LEAK_PER_SECOND: Final = 100.0
"""Units that leave a bucket in a second."""
BURST: Final = 500.0
"""Units that an agent may have in its bucket besides those of its replies and large presences."""
PRESENCES: Final = 4
"""Presences with every client of the experiment for which a bucket has room besides ``BURST``."""
REPLIES: Final = 4
"""Replies of the largest expected size for which a bucket has room: one, and three damaged ones before it."""
BACKLOG: Final = 64
"""Chunks for which a bucket has room before the first exchange opens: what the session of an earlier process holds."""
RECORD_UNITS: Final = 10.0
"""Units of a message that causes an entry in the coordinator's journal, or the refusal of a reply by a relay."""
CONTROL_UNITS: Final = 5.0
"""Units of a small presence or telemetry."""
RETAINED_NAME_UNITS: Final = 1.0
"""Units of a new name that the broker retains; these names arrive once for each subscription."""
SPARE_NAMES: Final = 100
"""New names that may appear at once besides two for each client."""
NAMES_AFTER_MUTE: Final = 30
"""New names that may appear at once after a mute of all new names. Each is journaled, so a larger burst would stop the
rounds for a second after each mute."""
FIRST_MUTE: Final = 10.0
LONGEST_MUTE: Final = 600.0
"""A calm of this length also ends the doubling."""
_MOST_DOUBLINGS: Final = 10
MOST_ACCOUNTS: Final = 10_000
STRANGERS: Final = ""
"""Holder of the bucket that the first message of each new name fills."""
NEVER: Final = float("-inf")
_CHUNK_BYTES: Final = 32 * 1024
_CONTROL_BYTES: Final = 1024
_CLIENTS_PER_UNIT: Final = 1000
_CLIENT_BYTES: Final = 8
"""Bytes of a client in a presence."""


def chunk_units(size: int) -> float:
    """Units of a chunk of ``size`` bytes."""
    return 1.0 + size // _CHUNK_BYTES


def reply_units(size: int, chunk: int) -> float:
    """Return the most units of a reply of ``size`` bytes, in chunks of at most ``chunk`` bytes."""
    step = min(chunk, SMALLEST_PAYLOAD)
    return -(-size // step) * chunk_units(step)


def control_units(size: int, clients: int = 0) -> float:
    """Units of a presence or telemetry; parsing JSON costs more than storing a chunk.

    Args:
        size: its bytes.
        clients: how many clients its ranges have, which take a few bytes and a lot of time.
    """
    return CONTROL_UNITS + size // _CONTROL_BYTES + clients // _CLIENTS_PER_UNIT


@dataclass(frozen=True)
class Mute:
    """An agent that is muted from now on, for ``seconds``; the agent ``STRANGERS`` stands for all new names."""

    agent: str
    seconds: float


@dataclass
class _Account:
    level: float = 0.0
    at: float = 0.0
    muted_until: float = NEVER
    unmuted_at: float = NEVER
    mutes: int = 0

    @property
    def is_muted(self) -> bool:
        """Whether a mute has begun and has not been ended."""
        return self.muted_until > NEVER

    def drain(self, now: float) -> None:
        """Let the bucket leak up to ``now``."""
        self.level = max(0.0, self.level - LEAK_PER_SECOND * (now - self.at))
        self.at = now

    def mute(self, now: float) -> float:
        """Mute the agent and return for how many seconds: twice as long as before, unless it was calm since."""
        if now - self.unmuted_at >= LONGEST_MUTE:
            self.mutes = 0
        seconds = min(FIRST_MUTE * float(2 ** min(self.mutes, _MOST_DOUBLINGS)), LONGEST_MUTE)
        self.mutes += 1
        self.muted_until = now + seconds
        return seconds

    def end_mute(self, now: float, level: float) -> None:
        """Start again with a bucket that is filled up to ``level``."""
        self.level, self.at, self.unmuted_at, self.muted_until = level, now, now, NEVER


class FloodGuard:
    """The buckets of all agents. The network thread fills them, the receiver's thread does the rest.

    Args:
        clients: number of clients of the experiment; twice as many agents may appear at once.
        chunk: largest chunk of a reply in bytes.
    """

    def __init__(self, clients: int, chunk: int) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {STRANGERS: _Account()}
        self._muted: frozenset[str] = frozenset()
        self._rooms: dict[str, float] = {}
        self.fit(clients, chunk)

    def fit(self, clients: int, chunk: int) -> None:
        """Give the buckets their size for an experiment, and empty them; mutes stay. The class has the arguments."""
        with self._lock:
            self._room_of_strangers = RECORD_UNITS * (SPARE_NAMES + 2 * clients)
            self._level_after_mute = self._room_of_strangers - RECORD_UNITS * NAMES_AFTER_MUTE
            self._burst = BURST + PRESENCES * control_units(_CLIENT_BYTES * clients)
            self._room_of_replies = BACKLOG * chunk_units(chunk)
            for account in self._accounts.values():
                account.level = 0.0

    @property
    def muted(self) -> frozenset[str]:
        """The agents that are muted; with ``STRANGERS``, every new name is."""
        return self._muted

    def expect(self, reply_units: float) -> None:
        """Make room for replies whose largest one has ``reply_units``."""
        self._room_of_replies = REPLIES * reply_units

    def make_room(self, agent: str, units: float) -> None:
        """Let the bucket of ``agent`` hold ``units`` more than the others; replaces what was set before."""
        with self._lock:
            self._rooms[agent] = units
            if not units:
                del self._rooms[agent]

    def open(self, agents: Iterable[str], now: float) -> None:
        """Open accounts of agents that are known: their names are not new."""
        with self._lock:
            for agent in set(agents) - self._accounts.keys():
                self._open(agent, now)

    def room(self, agent: str) -> float:
        """Return how many units the bucket of an agent holds."""
        if agent == STRANGERS:
            return self._room_of_strangers
        return self._burst + self._room_of_replies + self._rooms.get(agent, 0.0)

    def is_muted(self, agent: str) -> bool:
        """Whether messages of ``agent`` are ignored."""
        return agent in self._muted or (STRANGERS in self._muted and agent not in self._accounts)

    def charge(self, agent: str, units: float, now: float, name_units: float = RECORD_UNITS) -> Mute | None:
        """Fill an agent's bucket; returns its mute if the bucket overflows.

        Args:
            name_units: what a new name costs all new names.
        """
        with self._lock:
            if agent not in self._accounts:
                self._open(agent, now)
                if mute := self._fill(STRANGERS, name_units, now):
                    return mute
            return self._fill(agent, units, now)

    def refund(self, agent: str, units: float) -> None:
        """Remove the units of useful messages from an agent's bucket."""
        with self._lock:
            if account := self._accounts.get(agent):
                account.level = max(0.0, account.level - units)

    def end_mutes(self, now: float) -> list[str]:
        """End the mutes whose time is over; returns their agents."""
        with self._lock:
            ended = [name for name in self._muted if self._accounts[name].muted_until <= now]
            for name in ended:
                self._accounts[name].end_mute(now, self._level_after_mute if name == STRANGERS else 0.0)
            self._muted -= frozenset(ended)
        return ended

    def _open(self, agent: str, now: float) -> None:
        if len(self._accounts) > MOST_ACCOUNTS:
            self._forget(now)
        self._accounts[agent] = _Account(at=now)

    def _forget(self, now: float) -> None:
        """Drop the accounts of agents that are calm; if all are busy, drop those that are not muted."""
        for account in self._accounts.values():
            account.drain(now)
        quiet = [name for name, account in self._accounts.items() if name != STRANGERS and not account.is_muted]
        calm = [name for name in quiet if not self._accounts[name].level and not self._accounts[name].mutes]
        for name in calm or quiet:
            del self._accounts[name]

    def _fill(self, agent: str, units: float, now: float) -> Mute | None:
        account = self._accounts[agent]
        account.drain(now)
        account.level += units
        if account.level <= self.room(agent) or account.is_muted:
            return None
        self._muted |= {agent}
        return Mute(agent, account.mute(now))
