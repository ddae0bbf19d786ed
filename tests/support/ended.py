"""Asks whether processes have ended."""

from __future__ import annotations

import psutil


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
