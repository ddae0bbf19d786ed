"""Keeps a long-lived process small, where the C library is glibc."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 4 * 1024 * 1024
TRAINING: Final = 1024 * 1024
"""For a process that trains: its peak is then within a few per cent of what its tensors take, instead of half as much
again, which a board with little memory can count on."""


def return_freed_memory(large: int = _LARGE) -> None:
    """One heap for all threads, and tensors outside it, so that what is freed goes back to the system.

    Tensors of ``large`` bytes and more are outside. Chunks are allocated in the network thread and freed in the main
    one, beside tensors that come and go once a round. Left alone, glibc keeps a heap for each thread and tensors
    between the chunks in it; measured on a coordinator at 45 MB models, that is half of its growth, and nothing gets
    faster for it.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt, and no such heaps either
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, large)
