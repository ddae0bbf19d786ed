"""Randomness that only the board knows: which samples a step draws, and the noise on their gradients.

Whoever knows the noise can subtract it. So it comes from a key that never leaves the board, not from the experiment's
seed. Everything that the result depends on goes into it too: the same noise on two different results would reveal
their difference.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

import numpy as np


def open_secret(key: str, facts: Sequence[Any]) -> tuple[str, np.random.Generator]:
    """Return a digest of one training, in hex, and its generator.

    Args:
        key: of the board, in hex.
        facts: JSON values that distinguish this training from any training with a different result.
    """
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()
    secret = hmac.new(bytes.fromhex(key), text, hashlib.sha256).digest()
    return hashlib.sha256(text).hexdigest(), np.random.Generator(
        np.random.Philox(key=int.from_bytes(secret[:16], "little"))
    )
