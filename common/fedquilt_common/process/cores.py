"""The processor's cores that this process may use."""

from __future__ import annotations

import os

import psutil


def available_cores() -> int:
    """Return the number of cores, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1
