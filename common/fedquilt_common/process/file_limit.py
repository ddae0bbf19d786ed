"""The number of files and connections that a process may have open at once."""

from __future__ import annotations

import resource
from typing import Final

WANTED_FILES: Final = 4096
"""Enough for the largest supported fleet. Many systems start a process with 1024, and macOS with 256."""


def raise_file_limit(wanted: int = WANTED_FILES) -> int:
    """Raise the soft limit of open files to ``wanted``, or as far as the hard limit allows. It is never lowered.

    Returns:
        The soft limit that holds from now on; ``wanted`` if there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own
        return soft
    return target
