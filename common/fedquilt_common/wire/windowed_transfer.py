"""Reliable transfer over a lossy link: windows of packets, each acknowledged, and again after a timeout.

It is the scheme of the FedAKD thesis's section 4.4, Table 4.4. A sender transmits a window of packets. It sends those
whose packet or acknowledgement was lost again after a timeout, until all have arrived, and goes on to the next window.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final

WINDOW: Final = 3
"""Packets in a window, from Table 4.4."""
TIMEOUT: Final = 3.0
"""Seconds until packets without an acknowledgement are sent again, from Table 4.4."""
MOST_TRIES: Final = 1000
"""Tries after which a packet arrives in any case."""
_NEGLIGIBLE: Final = 1e-12


def expected_tries(loss: float) -> float:
    """Return how often a packet is sent on average until packet and acknowledgement arrive.

    Args:
        loss: share of the packets, and of the acknowledgements, that are lost; in [0, 1).
    """
    return 1 / (1 - loss) ** 2


def expected_timeouts(loss: float, window: int) -> float:
    """Return how many timeouts a window of ``window`` packets has on average: its worst packet's tries, less one."""
    fails = 1 - (1 - loss) ** 2
    return sum(itertools.takewhile(lambda late: late > _NEGLIGIBLE, _late_windows(fails, window)))


def expected_waits(packets: int, loss: float, window: int) -> float:
    """Return how many timeouts a transfer of ``packets`` has on average; the last window may be partly filled."""
    windows, rest = divmod(packets, window)
    return windows * expected_timeouts(loss, window) + expected_timeouts(loss, rest)


def _late_windows(fails: float, window: int) -> Iterator[float]:
    """Yield the probabilities that some packet of a window needs more than 1, 2, ... tries."""
    for tries in itertools.count(1):
        yield float(1 - (1 - fails**tries) ** window)


def windows_of(packets: int, window: int) -> Iterator[int]:
    """Yield the packets of each window."""
    for first in range(0, packets, window):
        yield min(window, packets - first)


def draw_transfer(packets: int, loss: float, window: int, rng: random.Random) -> tuple[int, int]:
    """Draw the packets that are sent in all until ``packets`` have arrived, and the number of timeouts."""
    sent = timeouts = 0
    for waiting in windows_of(packets, window):
        for _ in range(MOST_TRIES):
            sent += waiting
            waiting = sum(rng.random() < loss or rng.random() < loss for _ in range(waiting))
            if not waiting:
                break
            timeouts += 1
    return sent, timeouts


def draw_tries(loss: float, rng: random.Random) -> int:
    """Draw how often one packet is sent until it arrives, without a window."""
    tries = 1
    while tries < MOST_TRIES and rng.random() < loss:
        tries += 1
    return tries
