"""The health of a board: a state, and the reason for it. Pure: no clock, no I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from fedquilt_common.doctor.pi_firmware import describe_throttling
from fedquilt_common.plurals import counted
from fedquilt_server.status.snapshot import BoardStatus, HealthState

SILENT_AFTER: Final = 2.5
"""A board is silent after this many times the interval in which its agent promises a message."""
SHORTEST_SILENCE: Final = 5.0
"""Seconds that are never a silence: a busy broker or link delays messages."""
SENDING_SILENCE: Final = 20.0
"""The same while a large reply arrives: on a slow line, other messages wait behind a chunk of 1 MiB."""
HOT_CELSIUS: Final = 80.0
"""A Raspberry Pi limits its clock from 80 degrees Celsius on."""
RECENT_SECONDS: Final = 600.0
"""How long a restart, or training that ran out of memory, is shown."""
TOO_SMALL: Final = "not even the smallest sub-model fits its free memory, so it trains nothing"
NOW_BITS: Final = 0xFFFF
"""Bits of the firmware's ``get_throttled`` that describe the present."""


class BoardFacts(NamedTuple):
    """What the coordinator holds of a board besides the board's own report.

    Attributes:
        silence: seconds in which the coordinator listened and no message of the board arrived.
        accepted: its replies that count; ``late`` and ``rejected`` ones do not.
        restarts: restarts of its agent during the run.
        is_sending: whether chunks of its reply have arrived, and others are missing.
        is_dropped: whether a person has dropped the board.
        is_cut_off: whether the site through which it connects is cut off.
        is_late: whether its last reply was late.
        is_too_small: whether no sub-model fitted it when it was last asked to train one.
        restarted_at: Unix time in seconds of its last restart.
        out_of_memory_at: Unix time in seconds at which its training last ran out of memory.
    """

    silence: float = 0.0
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    restarts: int = 0
    is_sending: bool = False
    is_dropped: bool = False
    is_cut_off: bool = False
    is_late: bool = False
    is_too_small: bool = False
    restarted_at: float | None = None
    out_of_memory_at: float | None = None

    def counts(self) -> dict[str, int]:
        """Return the counts under their names in ``BoardStatus``."""
        return {name: getattr(self, name) for name in ("accepted", "late", "rejected", "restarts")}


def judge_health(board: BoardStatus, facts: BoardFacts, now: float) -> tuple[HealthState, str]:
    """Return a board's worst problem and the reason; ``("online", "")`` without one.

    Args:
        board: what it reported last.
        facts: what the coordinator has counted.
        now: Unix time in seconds.
    """
    if facts.is_dropped:
        return "dropped", "somebody has dropped it from the run; readmit it to use it again"
    if facts.is_cut_off:
        return "unreachable", f"it is behind the site {board.site}, which is cut off"
    if not board.online:
        return "offline", "the broker lost its connection"
    shortest = SENDING_SILENCE if facts.is_sending else SHORTEST_SILENCE
    if facts.silence >= max(shortest, SILENT_AFTER * board.interval):
        return "silent", f"it promised a message every {board.interval:g} s"
    return _judge_condition(board, facts, now)


def _judge_condition(board: BoardStatus, facts: BoardFacts, now: float) -> tuple[HealthState, str]:
    """Return what is wrong with a board that is connected and sends messages."""
    if _is_recent(facts.out_of_memory_at, now):
        return "out of memory", "training ran out of memory; it trains smaller sub-models now"
    if facts.is_too_small:
        return "too small", TOO_SMALL
    if problems := describe_throttling((board.throttled or 0) & NOW_BITS):
        return "throttled", "; ".join(problems)
    if board.temperature is not None and board.temperature >= HOT_CELSIUS:
        return "hot", f"{board.temperature:.0f} °C, from {HOT_CELSIUS:.0f} °C on boards slow down"
    if facts.is_late:
        return "late", "its last reply came after its exchange had closed"
    if _is_recent(facts.restarted_at, now):
        return "restarted", f"{counted(board.restarts, 'time')} in this run"
    return "online", ""


def _is_recent(at: float | None, now: float) -> bool:
    return at is not None and now - at < RECENT_SECONDS
