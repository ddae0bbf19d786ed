"""What a child process sets up between fork and exec."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded here: between fork and exec, a child of a process with threads must not load a library."""


def die_with_parent(parent: int) -> None:  # pragma: no cover - runs in the child
    """Let the kernel end this process with SIGTERM when its parent dies; no effect on other systems than Linux.

    Args:
        parent: the parent's process id. If it is already dead, this process ends at once.
    """
    if _LIBC is None:
        return
    pr_set_pdeathsig = 1
    _LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
