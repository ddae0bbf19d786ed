"""Seeds of all random numbers of a run, derived from the experiment's seed and their purpose, never from a clock."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Final

_NUMPY_LIMIT: Final = 1 << 32
"""The seeds of numpy's global generator are below it."""


def derive_seed(*parts: object) -> int:
    """Derive a seed below 2**63 from ``parts``, the same on every board and version.

    It is the first 63 bits of the SHA-256 of the parts' text, joined by ``/``.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_python(seed: int) -> None:
    """Start the global generators of Python and, if it is loaded, of numpy from ``seed``, which is not negative."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % _NUMPY_LIMIT)
