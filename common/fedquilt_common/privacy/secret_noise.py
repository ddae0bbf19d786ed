"""Randomness that only the board knows: which samples a step draws, and the noise on their gradients.

Whoever knows the noise can subtract it. So it comes from a key that never leaves the board, not from the experiment's
seed. Everything that the result depends on goes into it too: the same noise on two different results would tell their
difference.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

import numpy as np


def secret_generator(key: str, facts: Sequence[Any]) -> np.random.Generator:
    """Return the generator for one training.

    Args:
        key: of the board, in hex.
        facts: JSON values that tell this training from every other with a different result.
    """
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    digest = hmac.new(bytes.fromhex(key), text.encode(), hashlib.sha256).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
