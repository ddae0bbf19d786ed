"""Masks: pseudo-random numbers that both ends of a pair can make, added to fixed-point arrays modulo 2^64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.secure_aggregation.packages import ciphers
from fedquilt_common.wire.codec import BLOCK

_ZEROS: Final = bytes(8 * BLOCK)
Sign = Literal[1, -1]


class MaskStream:
    """The numbers of one mask, in order: the key stream of ChaCha20 (RFC 7539), which is fast on boards too.

    Args:
        seed: 32 bytes; each seed is used for one mask only.
        sign: whether the mask is added or subtracted.
    """

    def __init__(self, seed: bytes, sign: Sign) -> None:
        algorithms, cipher = ciphers()
        self._encryptor = cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
        self._sign = sign

    def add_to(self, values: NDArray[np.int64]) -> None:
        """Add the next numbers of the mask to at most BLOCK ``values``, shape (n,), in place."""
        mask = np.frombuffer(self._encryptor.update(_ZEROS[: values.nbytes]), np.int64)
        if self._sign > 0:
            values += mask
        else:
            values -= mask


def add_masks(arrays: Mapping[str, NDArray[np.int64]], streams: Sequence[MaskStream]) -> None:
    """Add masks to arrays of any shape, in place, in the order of their names.

    Args:
        arrays: contiguous; equal names and shapes at both ends of a pair.
        streams: the masks.

    Raises:
        ValueError: an array is not contiguous, so the masks would go into a copy.
    """
    for name in sorted(arrays):
        if not arrays[name].flags.c_contiguous:
            raise ValueError(f"array {name!r} is not contiguous")
        flat = arrays[name].reshape(-1)
        for start in range(0, flat.size, BLOCK):
            for stream in streams:
                stream.add_to(flat[start : start + BLOCK])


def pair_sign(client: int, peer: int) -> Sign:
    """Return the sign with which a client adds the mask that it shares with a peer."""
    return 1 if client < peer else -1
