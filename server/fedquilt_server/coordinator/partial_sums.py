"""Checks incoming partial sums against the replies that are expected of their members."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fedquilt_common.errors import PayloadError, ProtocolError, SumMismatchError
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.types import ClientId
from fedquilt_common.wire.codec import PackedArrays
from fedquilt_common.wire.messages import SUM_KEY, Outcome
from fedquilt_common.wire.number_ranges import pack_numbers
from fedquilt_common.wire.topics import Address
from fedquilt_server.coordinator.expected_replies import ExpectedReply, check_metrics

_NAMED: Final = 12
"""Clients, or ranges of them, that an error names."""


class RefusedSumError(PayloadError):
    """A partial sum does not count; its members send their replies again, in another sum or one by one.

    Attributes:
        outcome: what a single reply of the clients would have.
        clients: the members because of which it does not count; empty if the sum itself is not valid.
        seconds: what it took to find that the sum is not valid. No agent that works sends such a sum.
    """

    def __init__(
        self, reason: str, outcome: Outcome = "rejected", clients: Sequence[ClientId] = (), seconds: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.clients = clients
        self.seconds = seconds

    @classmethod
    def of_members(cls, outcome: Outcome, reason: str, clients: Sequence[ClientId]) -> RefusedSumError:
        """Return the error that names members, as ranges."""
        packed = pack_numbers(list(clients))
        named = ["-".join(map(str, one)) if isinstance(one, list) else str(one) for one in packed[:_NAMED]]
        return cls(f"the partial sum has clients that cannot count ({', '.join(named)}): {reason}", outcome, clients)


def is_partial_sum(arrays: PackedArrays) -> bool:
    """Whether a container is a partial sum instead of a reply."""
    return SUM_KEY in arrays.metadata


def check_partial_sum(
    run: str,
    address: Address,
    one: PartialSum,
    expected: Mapping[ClientId, ExpectedReply],
    judge: Callable[[ClientId], tuple[Outcome, str]],
) -> list[SumMember]:
    """Check a partial sum, and return its members.

    Args:
        run: identifier of the run.
        address: where it arrived: on the topic of its first member.
        one: the sum.
        expected: the replies that are expected of the clients for which the sending agent may send.
        judge: returns the outcome of a reply that is not expected, and the reason.

    Raises:
        RefusedSumError: it does not count.
    """
    began = time.perf_counter()
    try:
        return _check(run, address, one, expected, judge)
    except RefusedSumError:
        raise
    except ProtocolError as error:
        raise RefusedSumError(str(error), seconds=time.perf_counter() - began) from error


def _check(
    run: str,
    address: Address,
    one: PartialSum,
    expected: Mapping[ClientId, ExpectedReply],
    judge: Callable[[ClientId], tuple[Outcome, str]],
) -> list[SumMember]:
    header, first = one.header, expected[address.client]
    if (header.run, header.round, header.exchange) != (run, address.round, address.exchange):
        raise PayloadError("the header of the partial sum names another run or exchange than its topic")
    if first.summed is None:
        raise PayloadError("the replies to this task must travel one by one")
    if header.base != first.summed.base:
        raise SumMismatchError("the partial sum was made from other arrays than those that were published")
    members = one.members
    if len(members) < 2:
        raise PayloadError("a partial sum has one reply only; it must travel as what it is")
    clients = [member.client for member in members]
    if clients != sorted(clients) or clients[0] != address.client:
        raise PayloadError("the partial sum does not list its clients in order, or is not on the topic of the first")
    _check_expected(members, expected, judge, (address.round, address.exchange))
    one.check_members()
    _check_each(members, expected, first)
    one.check(first.sizes)
    return members


def _check_expected(
    members: Sequence[SumMember],
    expected: Mapping[ClientId, ExpectedReply],
    judge: Callable[[ClientId], tuple[Outcome, str]],
    exchange: tuple[int, int],
) -> None:
    """Check that a reply of each member is expected; the error names those of one outcome."""
    refused: dict[tuple[Outcome, str], list[ClientId]] = {}
    for member in members:
        reply = expected.get(member.client)
        if reply is None or reply.exchange != exchange:
            refused.setdefault(judge(member.client), []).append(member.client)
    for (outcome, reason), clients in refused.items():
        raise RefusedSumError.of_members(outcome, reason, clients)


def _check_each(members: Sequence[SumMember], expected: Mapping[ClientId, ExpectedReply], first: ExpectedReply) -> None:
    for member in members:
        reply = expected[member.client]
        try:
            _check_member(member, reply, first)
        except PayloadError as error:
            raise RefusedSumError.of_members("rejected", str(error), [member.client]) from None


def _check_member(member: SumMember, reply: ExpectedReply, first: ExpectedReply) -> None:
    if member.task != reply.fingerprint:
        raise PayloadError("the reply answers another task than the one that was published")
    if reply.summed != first.summed or (reply.layouts is not first.layouts and reply.layouts != first.layouts):
        raise PayloadError("its task is about other arrays than that of the first client")
    check_metrics(member.metrics, reply.metrics)
