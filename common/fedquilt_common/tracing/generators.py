"""Seeding the generators that a model draws from while it is built, traced and trained."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from fedquilt_common.seeds import seed_python

SEED_LIMIT: Final = 1 << 63
"""torch's seeds are below it."""


def seed_torch(seed: int) -> None:
    """Start torch's global generators from ``seed``, those of CUDA included.

    Without CUDA, ``torch.manual_seed`` would format the whole call stack for each kind of device that torch lacks, in
    case it is initialised later. That takes longer than one evaluation of a small model.
    """
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Start the global generators of torch, numpy and Python from ``seed`` inside the context; then restore them.

    A user's model or loss may draw from any of the three while it is built, traced or trained.
    """
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed % SEED_LIMIT)
        seed_python(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def read_generators() -> tuple[Any, ...]:
    """Return the states of the three generators, in a form that can be compared."""
    _, keys, *place = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(keys).tobytes(), place
