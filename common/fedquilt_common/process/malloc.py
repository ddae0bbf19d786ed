"""Settings of glibc's malloc that keep a long-lived process small, or training fast."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 4 * 1024 * 1024
_LARGEST: Final = 32 * 1024 * 1024
"""The largest threshold that glibc accepts."""
TRAINING: Final = 1024 * 1024
"""``large`` for a process that trains with little memory. Its peak is then within a few per cent of the memory of its
tensors. With glibc's defaults it is half as much again."""


def return_freed_memory(large: int = _LARGE) -> None:
    """Return freed memory to the system: one heap for all threads, and large tensors outside it.

    The network thread allocates chunks and the main thread frees them, next to tensors that are allocated once a
    round. By default glibc keeps a heap for each thread, with tensors between the chunks. On a coordinator with
    models of 45 MB, this was half of the process's growth, and nothing was faster.

    A little stays, or else the system would map and clear each chunk and each block of an average anew, which takes
    longer than to average it.

    Args:
        large: bytes of the smallest tensor outside the heap, and of what stays free at the heap's end.
    """
    _set_options({
        _M_ARENA_MAX: 1,
        _M_MMAP_THRESHOLD: large,
        _M_TRIM_THRESHOLD: 128 * 1024,
        _M_TOP_PAD: large,
    })  # fmt: skip


def keep_freed_memory() -> None:
    """Keep freed memory in the process, for training with plenty of memory.

    Tensors are allocated and freed in every step. Mapping and clearing their pages took a third of the training time
    of a small convolutional network.
    """
    _set_options({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _LARGEST, _M_TRIM_THRESHOLD: 8 * _LARGEST})


@contextlib.contextmanager
def reuse_freed_memory() -> Iterator[None]:
    """Keep freed memory inside the context, for work that allocates the same again and again; then return it.

    Afterwards the settings are those of ``return_freed_memory()``.
    """
    keep_freed_memory()
    try:
        yield
    finally:
        return_freed_memory()
        trim_heap()


def trim_heap() -> None:
    """Return memory that is free now to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _set_options(options: dict[int, int]) -> None:
    library = _glibc()
    for option, value in options.items() if library is not None else ():
        library.mallopt(option, value)


@functools.cache
def _glibc() -> Any:
    """Return glibc, or None with another C library: musl has neither mallopt nor a heap for each thread."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
