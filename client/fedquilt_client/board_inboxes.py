"""What the relay of a site writes to the inboxes of the boards behind it, as the coordinator writes to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedquilt_client.records import StoredReply
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import Assembly
from fedquilt_common.wire.messages import MissingMessage, Outcome, ReceiptMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport

REASON_LENGTH: Final = 300
"""Characters of a reason that are sent."""


class BoardInboxes:
    """Publishes to the boards' inboxes.

    Args:
        run: identifier of the run.
    """

    def __init__(self, transport: Transport, topics: Topics, run: str) -> None:
        self._transport = transport
        self._topics = topics
        self._run = run

    def answer(
        self, address: Address, digest: str, outcome: Outcome, reason: str, *, damaged: bool = False, final: bool = True
    ) -> None:
        """Answer a transfer that does not count, or not yet."""
        message = self._receipt(address.client, address.round, address.exchange, digest, outcome, reason)
        message = message.model_copy(update={"damaged": damaged, "final": final})
        self._transport.publish(self._topics.inbox(address.agent), message.encode())

    def settle(self, board: str, reply: StoredReply, outcome: Outcome, reason: str, members: Sequence[int]) -> None:
        """Send a board the outcome of a reply; of a sum, that of some of its members."""
        message = self._receipt(reply.client, reply.round, reply.exchange, reply.digest, outcome, reason)
        message = message.model_copy(update={"members": sorted(members)})
        self._transport.publish(self._topics.inbox(board), message.encode())

    def postpone(self, board: str, reply: StoredReply, reason: str, *, damaged: bool = False) -> None:
        """Ask a board to offer a reply again later; if it is damaged, to send it again at once."""
        message = self._receipt(reply.client, reply.round, reply.exchange, reply.digest, "rejected", reason)
        message = message.model_copy(update={"damaged": damaged, "final": False})
        self._transport.publish(self._topics.inbox(board), message.encode())

    def request_missing(self, address: Address, assembly: Assembly) -> None:
        """Ask a board for the chunks of a reply that have not arrived."""
        message = MissingMessage(
            run=self._run,
            client=address.client,
            round=address.round,
            exchange=address.exchange,
            digest=assembly.digest,
            bitmap=encode_bitmap(assembly.missing, assembly.count),
        )
        self._transport.publish(self._topics.inbox(address.agent), message.encode())

    def _receipt(
        self, client: int, round: int, exchange: int, digest: str, outcome: Outcome, reason: str
    ) -> ReceiptMessage:
        return ReceiptMessage(
            run=self._run, client=client, round=round, exchange=exchange, digest=digest, outcome=outcome,
            reason=reason[:REASON_LENGTH],
        )  # fmt: skip
