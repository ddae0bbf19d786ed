"""Publishes to the agents' inboxes: receipts, requests for missing chunks, stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedquilt_common.types import ClientId
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import Assembly
from fedquilt_common.wire.messages import MissingMessage, ReceiptMessage, StopMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport
from fedquilt_server.coordinator.refusals import REASON_LENGTH
from fedquilt_server.round.events import Receipt, Stop


class ReceiptPublisher:
    """Publishes to the inboxes of the agents of ``run``."""

    def __init__(self, transport: Transport, topics: Topics, run: str) -> None:
        self._transport = transport
        self._topics = topics
        self._run = run

    def send_receipt(self, receipt: Receipt) -> None:
        """Send an agent the outcome of a reply."""
        message = ReceiptMessage(
            run=self._run,
            client=receipt.client,
            round=receipt.round,
            exchange=receipt.exchange,
            digest=receipt.digest,
            outcome=receipt.outcome,
            reason=receipt.reason[:REASON_LENGTH],
            damaged=receipt.damaged,
            final=receipt.final,
        )
        self._transport.publish(self._topics.inbox(receipt.agent), message.encode())

    def request_missing(self, address: Address, assembly: Assembly) -> None:
        """Ask the sender of a reply for the chunks that have not arrived."""
        message = MissingMessage(
            run=self._run,
            client=address.client,
            round=address.round,
            exchange=address.exchange,
            digest=assembly.digest,
            bitmap=encode_bitmap(assembly.missing, assembly.count),
        )
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
