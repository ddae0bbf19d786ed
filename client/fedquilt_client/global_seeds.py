"""Seeds the global generators before a task: a user's code may draw from them."""

from __future__ import annotations

import sys

from fedquilt_common.seeds import seed_python


def seed_globals(seed: int) -> None:
    """Start the global generators of Python, numpy and torch from ``seed``; torch's only if it is loaded.

    An algorithm that draws from torch's has loaded it. The others draw through ``Learner``, which seeds it.
    """
    seed_python(seed)
    if "torch" in sys.modules:
        from fedquilt_common.tracing.generators import seed_torch

        seed_torch(seed)
