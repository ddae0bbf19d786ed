"""What the relay of a site writes to the inboxes of the boards behind it, as the coordinator writes to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedquilt_client.records import StoredReply
from fedquilt_common.wire.chunks import Assembly
from fedquilt_common.wire.inbox import AnsweredReply, missing_message, receipt_message
from fedquilt_common.wire.messages import Outcome
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport


class _UnstoredReply(NamedTuple):
    """A reply that is not in the store."""

    client: int
    round: int
    exchange: int
    digest: str


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
        reply = _UnstoredReply(address.client, address.round, address.exchange, digest)
        self._send(address.agent, reply, outcome, reason, damaged=damaged, final=final)

    def settle(self, board: str, reply: StoredReply, outcome: Outcome, reason: str, members: Sequence[int]) -> None:
        """Send a board the outcome of a reply; of a sum, that of some of its members."""
        self._send(board, reply, outcome, reason, members=sorted(members))

    def postpone(self, board: str, reply: StoredReply, reason: str, *, damaged: bool = False) -> None:
        """Ask a board to offer a reply again later; if it is damaged, to send it again at once.

        The members of a sum are named, so that the board does not take it apart.
        """
        self._send(board, reply, "rejected", reason, damaged=damaged, final=False, members=sorted(reply.clients))

    def request_missing(self, address: Address, assembly: Assembly) -> None:
        """Ask a board for the chunks of a reply that have not arrived."""
        message = missing_message(self._run, address, assembly)
        self._transport.publish(self._topics.inbox(address.agent), message.encode())

    def _send(self, board: str, reply: AnsweredReply, outcome: Outcome, reason: str, **fields: Any) -> None:
        message = receipt_message(self._run, reply, outcome, reason, **fields)
        self._transport.publish(self._topics.inbox(board), message.encode())
