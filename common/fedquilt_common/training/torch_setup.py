"""Torch's settings for results that can be reproduced: threads, deterministic operations, new memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch


def set_up_torch(threads: int = 1) -> None:
    """Make torch reproducible: fix the number of threads, and turn non-deterministic operations into errors.

    Args:
        threads: threads of one operation. Sums are split over them, so another number gives other bits.
    """
    fix_workspaces()
    torch.set_num_threads(threads)
    # Has the effect of use_deterministic_algorithms(True), which would also import torch's compiler.
    torch.set_deterministic_debug_mode("error")


def fix_workspaces() -> None:
    """Let cuBLAS compute the same bits each time. torch asks for this once, at the first matrix product on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class _FilledMemory:
    """Whether torch fills new memory in deterministic mode: a setting of the process, for all of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving = 0
        self._before = True

    def leave(self) -> None:
        """Fill no new memory until ``restore`` was called as often as this."""
        with self._lock:
            if self._leaving == 0:
                self._before = self._setting().fill_uninitialized_memory
                self._setting().fill_uninitialized_memory = False
            self._leaving += 1

    def restore(self) -> None:
        """Restore the earlier setting, once called as often as ``leave``."""
        with self._lock:
            self._leaving -= 1
            if self._leaving == 0:
                self._setting().fill_uninitialized_memory = self._before

    def _setting(self) -> Any:
        return torch.utils.deterministic


_FILLED_MEMORY: Final = _FilledMemory()


@contextlib.contextmanager
def leave_new_memory() -> Iterator[None]:
    """Let torch leave new memory as it is inside the context, in all threads; deterministic mode fills it with NaN.

    A layer that reads memory before it is written then gives NaN instead of other numbers in each run. Enter the
    context when the layers have run once: filling takes up to 14 % of a step.
    """
    if not hasattr(torch.utils, "deterministic"):  # torch 2.1 has no such setting
        yield
        return
    _FILLED_MEMORY.leave()
    try:
        yield
    finally:
        _FILLED_MEMORY.restore()
