"""The processor's cores that this process may use, and work that is spread over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import psutil

_MOST_THREADS: Final = 8
"""What reads memory and files gains little from more."""

Given = TypeVar("Given")
Made = TypeVar("Made")


def available_cores() -> int:
    """Return the number of cores, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def map_in_threads(work: Callable[[Sequence[Given]], list[Made]], items: Sequence[Given], *, worth: bool) -> list[Made]:
    """Return the results of the items, in their order; each thread works on neighbours.

    Only work that leaves the interpreter gains from it, such as hashing, reading files and numpy on large arrays.

    Args:
        work: from items to their results; must be thread-safe.
        worth: whether threads are worth their start; without them, the calling thread does all.

    Raises:
        Exception: what ``work`` raises for the first items for which it raises.
    """
    threads = min(available_cores(), _MOST_THREADS, len(items)) if worth else 1
    if threads < 2:
        return work(items)
    step = -(-len(items) // threads)
    runs = [items[start : start + step] for start in range(0, len(items), step)]
    with ThreadPoolExecutor(len(runs)) as pool:
        return [result for results in pool.map(work, runs) for result in results]
