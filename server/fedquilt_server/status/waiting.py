"""Sentences that name the clients for which a run waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import DASH


def describe_waiting(snapshot: Snapshot, width: int | None = None) -> str:
    """Name the clients that the run waits for, such as "Waiting for clients 0-5 to connect".

    Empty if the run does not wait for clients.

    Args:
        snapshot: the run.
        width: longest sentence: "clients 3-5, 9 and 4 more" are named; None: no limit.
    """
    if not snapshot.waits:
        return ""
    start = f"Waiting for client{'s' if len(snapshot.awaited) > 1 else ''} "
    end = f" to {'connect' if snapshot.phase == 'waiting' else 'reply'}"
    return f"{start}{ranges(snapshot.awaited, None if width is None else width - len(start) - len(end))}{end}"


def ranges(numbers: Iterable[int], width: int | None = None) -> str:
    """Join consecutive numbers with a dash: 0, 1, 2, 3, 7 becomes "0-3, 7". A board may host hundreds of clients.

    Args:
        numbers: the numbers.
        width: characters; the numbers that do not fit are counted, as in "0-3 and 4 more"; None: no limit.
    """
    ordered = sorted(set(numbers))
    if not ordered:
        return DASH
    text, named = "", 0
    for first, last in _consecutive_runs(ordered):
        part = str(first) if first == last else f"{first}{DASH}{last}"
        longer, left = f"{text}, {part}" if text else part, len(ordered) - named - (last - first + 1)
        if text and width is not None and len(longer) + (len(_more(left)) if left else 0) > width:
            return text + _more(len(ordered) - named)
        text, named = longer, named + last - first + 1
    return text


def _more(count: int) -> str:
    return f" and {count} more"


def _consecutive_runs(ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each run of consecutive numbers."""
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            yield ordered[start], ordered[i - 1]
            start = i
