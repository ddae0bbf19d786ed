"""Torch's settings for results that can be reproduced: threads, deterministic operations, seeds, new memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from fedquilt_common.tracing.generators import seed_torch

SEED_LIMIT = 1 << 63


def set_up_torch(threads: int = 1) -> None:
    """Make torch reproducible: fix the number of threads, and turn non-deterministic operations into errors.

    Args:
        threads: threads of one operation. Sums are split over them, so another number gives other bits.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    # Has the effect of use_deterministic_algorithms(True), which would also import torch's compiler.
    torch.set_deterministic_debug_mode("error")


@contextlib.contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Start torch's global generator from ``seed`` inside the context, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed % SEED_LIMIT)
        yield


@contextlib.contextmanager
def leave_new_memory() -> Iterator[None]:
    """Let torch leave new memory as it is inside the context; after ``set_up_torch`` it fills it with NaN.

    A layer that reads memory before it is written then gives NaN instead of other numbers in each run. Enter the
    context once every layer has run: filling takes up to 14 % of a step.
    """
    settings = getattr(torch.utils, "deterministic", None)  # torch 2.1 fills nothing
    if settings is None:
        yield
        return
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = True
