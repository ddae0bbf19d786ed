"""What the coordinator tells agents in their inboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedquilt_common.types import ClientId
from fedquilt_common.wire.messages import MissingMessage, ReceiptMessage, StopMessage, bitmap_of
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport
from fedquilt_server.coordinator.uplink import Transfer
from fedquilt_server.round.events import Receipt, Stop

REASON_LENGTH = 300


class ReceiptPublisher:
    """Writes receipts, requests for missing chunks, and stops of run ``run``."""

    def __init__(self, transport: Transport, topics: Topics, run: str) -> None:
        self._transport = transport
        self._topics = topics
        self._run = run

    def receipt(self, receipt: Receipt) -> None:
        """What became of a reply."""
        words = ReceiptMessage(
            run=self._run,
            client=receipt.client,
            round=receipt.round,
            exchange=receipt.exchange,
            digest=receipt.digest,
            outcome=receipt.outcome,
            reason=receipt.reason[:REASON_LENGTH],
            damaged=receipt.damaged,
        )
        self._transport.publish(self._topics.inbox(receipt.agent), words.encode())

    def missing(self, transfer: Transfer) -> None:
        """Which chunks of a reply have not come."""
        address, assembly = transfer.address, transfer.assembly
        request = MissingMessage(
            run=self._run,
            client=address.client,
            round=address.round,
            exchange=address.exchange,
            digest=assembly.digest,
            bitmap=bitmap_of(assembly.missing, assembly.count),
        )
        self._transport.publish(self._topics.inbox(address.agent), request.encode())

    def stop(self, stop: Stop, host_of: Mapping[ClientId, str]) -> None:
        """The exchange has closed without some clients; one message for each of their agents."""
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
