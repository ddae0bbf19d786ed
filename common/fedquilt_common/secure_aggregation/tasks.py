"""The tasks of secure aggregation, which both halves read: their kinds, scalars and arrays."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import ClientId, Scalar

KEYS: Final = "secure-keys"
"""The client draws its secrets and sends its public keys."""
SHARES: Final = "secure-shares"
"""The client shares its secrets among the clients that sent keys."""
UNMASK: Final = "secure-unmask"
"""The client sends, for each client, its share of one of the two secrets."""

ATTEMPT: Final = ".attempt"
"""Scalar: distinguishes the sums of a round; each has secrets of its own, even when the round starts again."""
THRESHOLD: Final = ".threshold"
"""Scalar: number of shares that give a secret."""
MASKED_WITH: Final = ".masked_with"
"""Scalar of the task whose reply is masked: the clients that add masks, such as ``0,2,5``."""

WHOLE: Final = ".whole"
"""Scalar of the same task: the reply's arrays of whole numbers, as a JSON list of names; without it there are none."""

EXCHANGE: Final = ".exchange"
"""Scalar: the exchange that the task would have without secure aggregation; seeds follow from it."""

_OWN: Final = frozenset({ATTEMPT, THRESHOLD, MASKED_WITH, WHOLE, EXCHANGE})
"""The scalars that the algorithm does not see."""

WEIGHT: Final = ".weight"
"""Array of a masked reply: the client's weight, shape (1,)."""


def encode_clients(clients: Sequence[ClientId]) -> str:
    """Return clients as a scalar."""
    return ",".join(map(str, clients))


def decode_clients(scalars: Mapping[str, Scalar]) -> list[ClientId]:
    """Return the clients of ``MASKED_WITH``.

    Raises:
        PayloadError: the scalar is not a list of clients.
    """
    try:
        return [int(text) for text in str(scalars[MASKED_WITH]).split(",")]
    except ValueError:
        raise PayloadError(f"{MASKED_WITH} = {scalars[MASKED_WITH]!r} is not a list of clients") from None


def encode_whole(names: Collection[str]) -> dict[str, Scalar]:
    """Return the scalar ``WHOLE``; none without arrays of whole numbers."""
    return {WHOLE: json.dumps(sorted(names))} if names else {}


def decode_whole(scalars: Mapping[str, Scalar]) -> frozenset[str]:
    """Return the names of the arrays of whole numbers.

    Raises:
        PayloadError: the scalar is not a list of names.
    """
    try:
        return frozenset(map(str, json.loads(str(scalars.get(WHOLE, "[]")))))
    except (ValueError, TypeError):
        raise PayloadError(f"{WHOLE} = {scalars[WHOLE]!r} is not a list of names") from None


def without_own(scalars: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the algorithm's scalars."""
    return {name: value for name, value in scalars.items() if name not in _OWN}
