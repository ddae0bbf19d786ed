"""For which clients a run waits, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fedquilt_server.status.snapshot import Snapshot

DASH: Final = "\N{EN DASH}"


def describe_waiting(snapshot: Snapshot) -> str:
    """Who is missing, in a few words; nothing where nobody is."""
    if not snapshot.waits:
        return ""
    several = len(snapshot.awaited) > 1
    who = f"client{'s' * several} {ranges(snapshot.awaited)}"
    if snapshot.phase == "waiting":
        return f"{who} {'are' if several else 'is'} not there"
    return f"{who} {'have' if several else 'has'} not replied"


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 3, 7 as "0 to 3, 7" with dashes: a board may host hundreds of clients."""
    return ", ".join(str(a) if a == b else f"{a}{DASH}{b}" for a, b in _runs(sorted(set(numbers)))) or DASH


def _runs(ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of consecutive numbers."""
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            yield ordered[start], ordered[i - 1]
            start = i
