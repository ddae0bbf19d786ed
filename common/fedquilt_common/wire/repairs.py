"""The pauses after which lost chunks are repaired: how long a receiver waits for a chunk, a sender for a receipt."""

from __future__ import annotations

from typing import Final

from fedquilt_common.wire.chunks import CHUNK, LARGEST_CHUNK, usual_chunk

REPAIR_SECONDS: Final = 3.0
"""Seconds without a chunk of 256 KiB before the first repair, and four times as long for one of 1 MiB; less on a
simulated link with a speedup."""
SHORTEST_REPAIR_SECONDS: Final = 0.2
LONGEST_REPAIR_SECONDS: Final = 300.0
PATIENCE: Final = 4.0
"""A chunk counts as lost after this many times the longest gap between two chunks."""
SINGLE_REPAIRS: Final = 32
"""The largest number of missing chunks that are requested one by one; for more, the whole slot is requested."""
FIRST_PROBE_SECONDS: Final = 3.0
"""Seconds until a sender first asks for the receipt of a reply; less on a simulated link with a speedup."""
SHORTEST_PROBE_SECONDS: Final = 0.2
LAST_PROBE_SECONDS: Final = 60.0


def first_repair_pause(size: int, speedup: float) -> float:
    """Return the seconds without a chunk before the first repair: larger chunks take longer on the same line.

    Args:
        size: bytes of the largest patch.
        speedup: how many times faster time passes on a simulated link; 1 for a real link.
    """
    chunk = min(LARGEST_CHUNK, usual_chunk(size))
    return max(SHORTEST_REPAIR_SECONDS, REPAIR_SECONDS * chunk / CHUNK / speedup)
