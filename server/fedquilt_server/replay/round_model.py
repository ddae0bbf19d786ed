"""The model of one exchange, as pure functions: when the replies of a board arrive, and when the exchange closes.

Times are seconds from the opening of the exchange.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedquilt_server.replay.drawn_link import MeanLink, draw_download, draw_uploads


@dataclass(frozen=True)
class ModelledTask:
    """One task of a board.

    Attributes:
        train: seconds of training.
        pause: the lag of a first task, the gap before a later one, in seconds; without time on a link.
        size: bytes of the reply.
    """

    train: float
    pause: float
    size: int


@dataclass(frozen=True)
class ClosingRule:
    """When an exchange closes: when all have replied, or with a quorum once the deadline has passed."""

    quorum: int
    deadline: float


@dataclass(frozen=True)
class ClosedExchange:
    """An exchange that has closed: after how many seconds, and with how many replies."""

    seconds: float
    replies: int


def board_arrivals(tasks: Sequence[ModelledTask], workers: int, line: MeanLink | None = None) -> list[float]:
    """Return when the replies of one board arrive, in the order of its tasks.

    Args:
        tasks: in the order in which the board begins them.
        workers: tasks that it does at the same time.
        line: its link; None: transfers take no time. The board receives as many bytes as its largest reply has, and
            sends its replies in turn.
    """
    begin = 0.0 if line is None else draw_download(line, max((task.size for task in tasks), default=0))
    free = [begin] * workers
    ready = []
    for task in tasks:
        done = max(0.0, heapq.heappop(free) + task.pause + task.train)
        heapq.heappush(free, done)
        ready.append(done)
    return ready if line is None else draw_uploads(line, ready, [task.size for task in tasks])


def close_exchange(arrivals: Sequence[float], rule: ClosingRule) -> ClosedExchange:
    """Return when an exchange closes and how many replies it has then; ``arrivals`` has one time for each task."""
    ordered = sorted(arrivals)
    if not ordered:
        return ClosedExchange(0.0, 0)
    with_quorum = max(rule.deadline, ordered[min(rule.quorum, len(ordered)) - 1])
    seconds = min(ordered[-1], with_quorum)
    return ClosedExchange(seconds, sum(arrival <= seconds for arrival in ordered))


def misses_quorum(arrivals: Sequence[float], rule: ClosingRule) -> bool:
    """Whether the deadline passes without a quorum."""
    in_time = sum(arrival <= rule.deadline for arrival in arrivals)
    return math.isfinite(rule.deadline) and in_time < min(rule.quorum, len(arrivals))
