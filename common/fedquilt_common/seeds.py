"""Every random number of a run comes from here: from the experiment's seed and what it is for, never from a clock."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed below 2**63 from the parts, the same on every board and version (SHA-256 of their text)."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
