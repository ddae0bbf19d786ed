"""Publishes to the agents' inboxes: receipts, requests for missing chunks, stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedquilt_common.types import ClientId
from fedquilt_common.wire.chunks import Assembly
from fedquilt_common.wire.inbox import missing_message, receipt_message
from fedquilt_common.wire.messages import MAX_OTHERS, OtherReply, StopMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport
from fedquilt_server.round.events import Receipt, Stop


class ReceiptPublisher:
    """Publishes to the inboxes of the agents of ``run``."""

    def __init__(self, transport: Transport, topics: Topics, run: str) -> None:
        self._transport = transport
        self._topics = topics
        self._run = run
        self._waiting: dict[str, list[Receipt]] = {}
        self._sums: dict[tuple[str, ...], list[Receipt]] = {}
        self._sum_is_open = False

    def collect(self, receipt: Receipt) -> None:
        """Keep a receipt for ``flush``, which sends receipts with the same outcome as one message."""
        if receipt.carrier is not None:
            key = receipt.agent, receipt.digest, receipt.outcome, receipt.reason
            self._sums.setdefault(key, []).append(receipt)
            self._sum_is_open = receipt.more > 0
            return
        waiting = self._waiting.setdefault(receipt.agent, [])
        if waiting and (_kind(receipt) != _kind(waiting[0]) or len(waiting) > MAX_OTHERS):
            self.flush()
            waiting = self._waiting.setdefault(receipt.agent, [])
        waiting.append(receipt)

    def drop_sums(self) -> None:
        """Drop the receipts of a partial sum whose last member has not been handled: its members do not count."""
        self._sums, self._sum_is_open = {}, False

    def flush(self) -> None:
        """Send the receipts that wait; those of a partial sum wait for its last member."""
        waiting, self._waiting = self._waiting, {}
        for first, *others in waiting.values():
            self.send_receipt(first, others)
        sums, self._sums = ({}, self._sums) if self._sum_is_open else (self._sums, {})
        for members in sums.values():
            self.send_receipt(members[0], members=[receipt.client for receipt in members])

    def send_receipt(self, receipt: Receipt, others: Sequence[Receipt] = (), members: Sequence[ClientId] = ()) -> None:
        """Send an agent the outcome of a reply, and of others that have the same; or of members of a partial sum."""
        message = receipt_message(
            self._run,
            receipt,
            receipt.outcome,
            receipt.reason,
            damaged=receipt.damaged,
            final=receipt.final,
            others=[OtherReply(client=other.client, digest=other.digest) for other in others],
            members=sorted(members),
        )
        self._transport.publish(self._topics.inbox(receipt.agent), message.encode())

    def request_missing(self, address: Address, assembly: Assembly) -> None:
        """Ask the sender of a reply for the chunks that have not arrived."""
        message = missing_message(self._run, address, assembly)
        self._transport.publish(self._topics.inbox(address.agent), message.encode())

    def send_stops(self, stop: Stop, host_of: Mapping[ClientId, str]) -> None:
        """Send each agent the clients of its own that must stop, because the exchange closed without them."""
        hosted: dict[str, list[ClientId]] = {}
        for client in stop.clients:
            if client in host_of:
                hosted.setdefault(host_of[client], []).append(client)
        for agent, clients in hosted.items():
            self._transport.publish(self._topics.inbox(agent), self._stop_message(stop, clients).encode())

    def _stop_message(self, stop: Stop, clients: Sequence[ClientId]) -> StopMessage:
        reason = f"round {stop.round}, exchange {stop.exchange} has closed"
        return StopMessage(
            run=self._run, clients=list(clients), round=stop.round, exchange=stop.exchange, reason=reason
        )


def _kind(receipt: Receipt) -> Receipt:
    """Return what receipts that travel together have in common."""
    return replace(receipt, client=0, digest="")
