"""Keeps a long-lived process small, or a training one fast, where the C library is glibc."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 4 * 1024 * 1024
_LARGEST: Final = 32 * 1024 * 1024
"""The most that glibc takes for a threshold."""
TRAINING: Final = 1024 * 1024
"""For a process that trains where memory is scarce: its peak is then within a few per cent of what its tensors take,
instead of half as much again, which a board with little memory can count on."""


def return_freed_memory(large: int = _LARGE) -> None:
    """One heap for all threads, and tensors outside it, so that what is freed goes back to the system.

    Tensors of ``large`` bytes and more are outside. Chunks are allocated in the network thread and freed in the main
    one, beside tensors that come and go once a round. Left alone, glibc keeps a heap for each thread and tensors
    between the chunks in it; measured on a coordinator at 45 MB models, that is half of its growth, and nothing gets
    faster for it.
    """
    _set({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: large, _M_TRIM_THRESHOLD: 128 * 1024})


def keep_freed_memory() -> None:
    """The opposite, for a process that trains where memory is plenty: tensors come and go in every step, and a third
    of the time of training a small convolutional network went into mapping and clearing their pages."""
    _set({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _LARGEST, _M_TRIM_THRESHOLD: 8 * _LARGEST})


def trim_heap() -> None:
    """What is free now goes back to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    library = _glibc()
    for option, value in options.items() if library is not None else ():
        library.mallopt(option, value)


def _glibc() -> Any:
    """None where the C library is another: musl has no mallopt, and no such heaps either."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
