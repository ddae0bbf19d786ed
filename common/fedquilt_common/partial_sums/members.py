"""The clients of a partial sum: their tasks, weights and metrics, and the seal that shows who was added."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedquilt_common.aggregation.exact_sum import ExactSum
from fedquilt_common.errors import MissingMemberError, PayloadError, RepeatedMemberError, SumMismatchError
from fedquilt_common.partial_sums.digit_planes import deflate, inflate
from fedquilt_common.types import ClientId
from fedquilt_common.wire.message_base import Clients, WireMessage
from fedquilt_common.wire.messages import MAX_METRICS, MOST_MEMBERS, Fingerprint, Weight
from fedquilt_common.wire.parsing import MAX_MESSAGE, parse

SEAL_SIZE: Final = 3
"""Numbers of a seal: 1, and two that distinguish the clients."""
_SUSPECTS: Final = 4096
"""Members that are compared with a seal that is wrong; of larger sums, an error may name no client."""
_FiniteMetric = Annotated[float, Field(allow_inf_nan=False)]


class _MembersMessage(WireMessage):
    """The members as JSON: a column for each property, of one value if all are equal."""

    clients: Clients
    tasks: list[Fingerprint]
    weights: list[Weight]
    metrics: dict[str, list[_FiniteMetric | None]] = Field(max_length=MAX_METRICS)


@dataclass(frozen=True)
class SumMember:
    """One client's part in a partial sum.

    Attributes:
        task: fingerprint of the task that its reply answers.
        weight: its weight in the mean.
        metrics: those of its reply.
    """

    client: ClientId
    task: str
    weight: float
    metrics: Mapping[str, float]


def encode_members(members: Sequence[SumMember]) -> bytes:
    """Return the bytes that ``decode_members`` reads; a column of equal values is stored as one value."""
    names = sorted({name for member in members for name in member.metrics})
    message = _MembersMessage.model_construct(
        clients=[member.client for member in members],
        tasks=_pack([member.task for member in members]),
        weights=_pack([member.weight for member in members]),
        metrics={name: _pack([member.metrics.get(name) for member in members]) for name in names},
    )
    return deflate(message.model_dump_json().encode())


def decode_members(content: bytes) -> list[SumMember]:
    """Return the members of a sum.

    Raises:
        ProtocolError: the bytes are not those of members.
        RepeatedMemberError: a client is listed twice.
    """
    found = parse(_MembersMessage, inflate(content, MAX_MESSAGE), "the members of a partial sum")
    count = len(found.clients)
    if count > MOST_MEMBERS:  # a range of clients is short
        raise PayloadError(f"a partial sum lists {count} clients; the limit is {MOST_MEMBERS}")
    (client, times), *_ = Counter(found.clients).most_common(1) or [(0, 0)]
    if times > 1:
        raise RepeatedMemberError(f"the partial sum lists client {client} twice")
    columns = {name: _unpack(column, count) for name, column in found.metrics.items()}
    metrics: list[dict[str, float]] = [{} for _ in range(count)]
    for name, column in columns.items():
        for own, value in zip(metrics, column, strict=True):
            if value is not None:
                own[name] = value
    tasks, weights = _unpack(found.tasks, count), _unpack(found.weights, count)
    return [SumMember(*one) for one in zip(found.clients, tasks, weights, metrics, strict=True)]


def _pack(column: Sequence[Any]) -> list[Any]:
    return list(column[:1]) if all(value == column[0] for value in column) else list(column)


def _unpack(column: Sequence[Any], count: int) -> Sequence[Any]:
    if len(column) not in (1, count) or not count:
        raise PayloadError(f"a partial sum has {len(column)} values for {count} members")
    return column if len(column) == count else [column[0]] * count


# -- the seal ----------------------------------------------------------------------------------


def make_seal(client: ClientId) -> NDArray[np.float64]:
    """Return numbers that are added, weighted, as if they belonged to a client's model, shape (SEAL_SIZE,)."""
    digest = hashlib.sha256(f"member {client}".encode()).digest()
    return np.array([1, *np.frombuffer(digest[:8], "<u4")], np.float64)


def check_seal(found: ExactSum, members: Sequence[SumMember]) -> None:
    """Check that a sum was made of its members, each once and with its weight.

    Args:
        found: the sum of the seals, of SEAL_SIZE numbers.
        members: those that the sum lists.

    Raises:
        RepeatedMemberError: a client was added twice.
        MissingMemberError: a client was left out.
        SumMismatchError: the sum differs otherwise, such as by a weight.
    """
    difference = _weigh(members, -1.0)
    difference.merge(found)
    if not len(difference.digits().rows):
        return
    raise next(
        _find_culprits(difference, members),
        SumMismatchError(
            f"the partial sum is not that of its {len(members)} members: it adds clients that it does not list, or "
            "with other weights"
        ),
    )


def _weigh(members: Sequence[SumMember], factor: float) -> ExactSum:
    """Return the sum of the members' weighted seals, times 1 or -1."""
    total = ExactSum(SEAL_SIZE)
    total.add(np.stack([factor * member.weight * make_seal(member.client) for member in members]))
    return total


def _find_culprits(difference: ExactSum, members: Sequence[SumMember]) -> Iterator[PayloadError]:
    """Yield the error of a member whose seal, added once more or left out, explains the difference."""
    for member in members[:_SUSPECTS]:
        for factor, kind, what in ((-1.0, RepeatedMemberError, "adds client {} twice"),
                                   (1.0, MissingMemberError, "lists client {}, but leaves its reply out")):  # fmt: skip
            rest = _weigh([member], factor)
            rest.merge(difference)
            if not len(rest.digits().rows):
                yield kind("the partial sum " + what.format(member.client))
