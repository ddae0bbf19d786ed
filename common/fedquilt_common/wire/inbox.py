"""What is written to the inbox of whoever sends replies: receipts, and requests for missing chunks."""

from __future__ import annotations

from typing import Any, Protocol

from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import Assembly
from fedquilt_common.wire.messages import MissingMessage, Outcome, ReceiptMessage
from fedquilt_common.wire.texts import shorten_text
from fedquilt_common.wire.topics import Address


class AnsweredReply(Protocol):
    """What names a reply."""

    @property
    def client(self) -> int:
        """Whose reply it is; of a partial sum, the first client."""

    @property
    def round(self) -> int:
        """The round that it answers."""

    @property
    def exchange(self) -> int:
        """The exchange in this round."""

    @property
    def digest(self) -> str:
        """Its digest, in hex."""


def receipt_message(run: str, reply: AnsweredReply, outcome: Outcome, reason: str, **fields: Any) -> ReceiptMessage:
    """Return a receipt.

    Args:
        run: identifier of the run.
        reply: what it answers.
        outcome: whether the reply counts.
        reason: why; cut to what is sent.
        fields: further fields of the message.
    """
    return ReceiptMessage(
        run=run, client=reply.client, round=reply.round, exchange=reply.exchange, digest=reply.digest, outcome=outcome,
        reason=shorten_text(reason), **fields,
    )  # fmt: skip


def missing_message(run: str, address: Address, assembly: Assembly) -> MissingMessage:
    """Return the request for the chunks of a reply that have not arrived."""
    return MissingMessage(
        run=run, client=address.client, round=address.round, exchange=address.exchange, digest=assembly.digest,
        bitmap=encode_bitmap(assembly.missing, assembly.count),
    )  # fmt: skip
