"""Transfers over a simulated link, drawn as ``SlowLinkTransport`` loses packets and as both sides repair them.

Times are seconds at the desk from the opening of an exchange. A transfer is drawn as a whole: its chunks are equal, and
only chunks are lost. Without losses and open times a transfer takes ``Link.seconds`` and the latency.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedquilt_common.wire.chunks import LARGEST_CHUNK, usual_chunk
from fedquilt_common.wire.link import Link
from fedquilt_common.wire.repairs import (
    FIRST_PROBE_SECONDS,
    LAST_PROBE_SECONDS,
    LONGEST_REPAIR_SECONDS,
    PATIENCE,
    SHORTEST_PROBE_SECONDS,
    SINGLE_REPAIRS,
    first_repair_pause,
)
from fedquilt_common.wire.windowed_transfer import MOST_TRIES, draw_transfer, draw_tries, windows_of

_ONE_BY_ONE: Final = 50
"""Packets or chunks up to which each is drawn by itself."""


def count_chunks(link: Link, size: int) -> int:
    """Return the number of chunks of a transfer of ``size`` bytes whose chunks fit a packet of the link."""
    largest = min(usual_chunk(size), LARGEST_CHUNK)
    if link.loss and link.payload is not None:
        largest = min(largest, link.payload)
    return max(1, -(-size // largest))


@dataclass(frozen=True)
class MeanLink:
    """A link on which each transfer takes its mean.

    It is for a board that keeps its recorded link: its recorded times hold what its transfers took beyond the mean.
    """

    link: Link

    @property
    def latency(self) -> float:
        """Seconds at the desk from the end of a transfer to its arrival."""
        return self.link.mean_latency

    def end_of(self, start: float, seconds: float) -> float:
        """Return when a transfer of ``seconds`` seconds ends that can begin at ``start``."""
        return start + seconds

    def draw_seconds(self, size: int) -> float:
        """Return how long all chunks of ``size`` bytes occupy the link, without repairs by the protocol."""
        return self.link.mean_seconds(size)

    def draw_delay(self) -> float:
        """Return the seconds from sending a message of one packet, which no link loses, to its arrival."""
        return self.link.mean_latency

    def draw_lost(self, chunks: int) -> int:
        """Return how many of some chunks are lost."""
        return 0


@dataclass(frozen=True)
class DrawnLink(MeanLink):
    """A link in one exchange, whose transfers are drawn.

    Attributes:
        rng: of the losses.
        opened_at: when the exchange opens, in seconds at the desk since a period of the open times began.
    """

    rng: random.Random
    opened_at: float = 0.0

    @property
    def latency(self) -> float:
        return self.link.latency / self.link.speedup

    def end_of(self, start: float, seconds: float) -> float:
        if not self.link.open:
            return start + seconds
        return self.link.end_of(self.opened_at + start, seconds) - self.opened_at

    def draw_seconds(self, size: int) -> float:
        once, packets = self.link.seconds(size), self.link.packets(size)
        if self.link.window is None:
            return once
        draw = draw_transfer if packets <= _ONE_BY_ONE else _draw_together
        sent, timeouts = draw(packets, self.link.loss, self.link.window, self.rng)
        return once * (sent / packets) + timeouts * self.link.timeout / self.link.speedup

    def draw_delay(self) -> float:
        if self.link.window is not None:
            return self.draw_seconds(0) + self.latency
        return self.latency * draw_tries(self.link.loss, self.rng)

    def draw_lost(self, chunks: int) -> int:
        if self.link.window is not None or not self.link.loss:
            return 0
        if chunks > _ONE_BY_ONE:
            return int(_numpy_rng(self.rng).binomial(chunks, self.link.loss))
        return sum(self.rng.random() < self.link.loss for _ in range(chunks))


def _draw_together(packets: int, loss: float, window: int, rng: random.Random) -> tuple[int, int]:
    """Draw what ``draw_transfer`` draws for all windows at once, which is fast for many packets."""
    draws = _numpy_rng(rng)
    waiting = np.array(list(windows_of(packets, window)))
    sent = timeouts = 0
    for _ in range(MOST_TRIES):
        sent += int(waiting.sum())
        waiting = draws.binomial(waiting, 1 - (1 - loss) ** 2)
        waiting = waiting[waiting > 0]
        if not len(waiting):
            break
        timeouts += len(waiting)
    return sent, timeouts


def _numpy_rng(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(64))


def draw_download(line: MeanLink, size: int) -> float:
    """Draw when a board has a patch of ``size`` bytes and the manifest that follows it.

    The board requests lost chunks once no chunk has come for a while. The pause doubles, until several chunks arrive.
    """
    chunks, first = count_chunks(line.link, size), first_repair_pause(size, line.link.speedup)
    at, pause = line.end_of(0.0, line.draw_seconds(size)) + line.draw_delay(), first
    chunk_seconds = line.link.seconds(size) / chunks
    missing = line.draw_lost(chunks)
    while missing:
        sent = missing if missing <= SINGLE_REPAIRS else chunks
        asked = line.end_of(at + pause, 0.0) + line.latency
        at = line.end_of(asked, chunk_seconds * sent) + line.latency
        missing, before = line.draw_lost(missing), missing
        pause = min(2 * pause if before - missing < 2 else max(first, PATIENCE * chunk_seconds), LONGEST_REPAIR_SECONDS)
    return at


@dataclass(frozen=True, order=True)
class _SentPart:
    """What a board sends of a reply at a time: chunks before the last one, and the last one, which asks for a receipt.

    Attributes:
        ready: when the board sends it.
        number: of the reply.
        missing: the chunks before the last one that have not arrived.
        has_missing: whether these are sent.
        has_last: whether the last one is sent.
        lacks_last: whether the last one has not arrived.
        pause: seconds until the board asks for the receipt.
    """

    ready: float
    number: int
    missing: int
    has_missing: bool
    has_last: bool
    lacks_last: bool
    pause: float


def draw_uploads(line: MeanLink, ready: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Draw when replies arrive over a link that carries one message at a time.

    Args:
        line: the link.
        ready: when each reply is ready.
        sizes: bytes of each.
    """
    first = max(SHORTEST_PROBE_SECONDS, FIRST_PROBE_SECONDS / line.link.speedup)
    counts = [count_chunks(line.link, size) for size in sizes]
    waiting = [_SentPart(at, n, counts[n] - 1, True, True, True, first) for n, at in enumerate(ready)]
    heapq.heapify(waiting)
    arrivals, free_at = list(ready), 0.0
    while waiting:
        part = heapq.heappop(waiting)
        sent = part.missing * part.has_missing + part.has_last
        seconds = line.draw_seconds(sizes[part.number]) * (sent / counts[part.number])
        free_at = line.end_of(max(free_at, part.ready), seconds)
        rest = _draw_rest(line, part, free_at + line.latency, first)
        if rest is None:
            arrivals[part.number] = free_at + line.latency
        else:
            heapq.heappush(waiting, rest)
    return arrivals


def _draw_rest(line: MeanLink, part: _SentPart, arrived_at: float, first: float) -> _SentPart | None:
    """Draw what the board sends after a part; None if the reply is complete.

    The coordinator answers the last chunk at once with a list of the missing ones. If the last chunk is lost, or was
    not sent, the board sends it again after a pause, once all that it has sent is through.
    """
    missing = line.draw_lost(part.missing) if part.has_missing else part.missing
    last_arrives = part.has_last and not line.draw_lost(1)
    lacks_last = part.lacks_last and not last_arrives
    if not missing and not lacks_last:
        return None
    after = replace(part, missing=missing, has_missing=last_arrives, has_last=not last_arrives, lacks_last=lacks_last)
    if last_arrives:
        told_at = line.end_of(arrived_at, 0.0) + line.draw_delay()
        return replace(after, ready=told_at, pause=first)
    return replace(after, ready=max(part.ready + part.pause, arrived_at), pause=min(2 * part.pause, LAST_PROBE_SECONDS))
