"""Sentences that name the clients for which a run waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fedquilt_server.status.snapshot import Snapshot

DASH: Final = "\N{EN DASH}"


def describe_waiting(snapshot: Snapshot) -> str:
    """Name the clients that the run waits for, such as "Waiting for clients 0-5 to connect".

    Empty if the run does not wait for clients.
    """
    if not snapshot.waits:
        return ""
    plural = "s" if len(snapshot.awaited) > 1 else ""
    action = "connect" if snapshot.phase == "waiting" else "reply"
    return f"Waiting for client{plural} {ranges(snapshot.awaited)} to {action}"


def ranges(numbers: Iterable[int]) -> str:
    """Join consecutive numbers with a dash: 0, 1, 2, 3, 7 becomes "0-3, 7". A board may host hundreds of clients."""
    runs = _consecutive_runs(sorted(set(numbers)))
    return ", ".join(str(a) if a == b else f"{a}{DASH}{b}" for a, b in runs) or DASH


def _consecutive_runs(ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each run of consecutive numbers."""
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            yield ordered[start], ordered[i - 1]
            start = i
