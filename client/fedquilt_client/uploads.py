"""Sends replies to the coordinator, one at a time, each until its receipt arrives."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fedquilt_client.store import StoredReply
from fedquilt_common.wire.bitmaps import decode_bitmap
from fedquilt_common.wire.chunks import Blob, ChunkHeader, publish_chunks
from fedquilt_common.wire.messages import MissingMessage, ReceiptMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

FIRST_PROBE_SECONDS: Final = 3.0
SHORTEST_PROBE_SECONDS: Final = 0.2
LAST_PROBE_SECONDS: Final = 60.0
DAMAGES: Final = 3
"""Limit of retries of a reply that arrives damaged."""


@dataclass
class _Sending:
    reply: StoredReply
    blob: Blob
    headers: list[ChunkHeader]
    pause: float
    sent: bool = False
    probe_at: float = 0.0
    damages: int = 0


class Uploads:
    """Sends replies in turn. Without a receipt, it sends the last chunk again, which asks for one.

    Args:
        agent: name of this agent.
        blob_of: returns the bytes of a reply.
        chunk: largest chunk in bytes.
        speedup: how much faster time passes on a simulated link.
    """

    def __init__(
        self,
        agent: str,
        transport: Transport,
        topics: Topics,
        blob_of: Callable[[StoredReply], Blob],
        chunk: int,
        speedup: float = 1.0,
    ) -> None:
        self._first_pause = max(SHORTEST_PROBE_SECONDS, FIRST_PROBE_SECONDS / speedup)
        self._agent = agent
        self._transport = transport
        self._topics = topics
        self._blob_of = blob_of
        self._chunk = chunk
        self._waiting: collections.deque[StoredReply] = collections.deque()
        self._current: _Sending | None = None
        self._settled: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a reply waits for its receipt."""
        return self._current is not None or bool(self._waiting)

    def offer(self, reply: StoredReply) -> None:
        """Send a reply, unless it is settled or under way."""
        current = self._current.reply if self._current else None
        if reply.digest not in self._settled and reply not in (current, *self._waiting):
            self._waiting.append(reply)
            self.advance()

    def advance(self) -> None:
        """Start the next reply, or ask for a receipt that is overdue."""
        if self._current is None and self._waiting:
            self._start(self._waiting.popleft())
        current = self._current
        if current is None or time.monotonic() < current.probe_at:
            return
        if current.sent and not self._transport.drain(0.0):
            return  # on a slow link, chunks of the reply are still in the queue
        if current.sent:
            log.info("client %d, round %d: no receipt yet; asking for it", current.reply.client, current.reply.round)
            self._send(current, current.headers[-1:])
        else:
            current.sent = self._send(current, current.headers)
        current.probe_at = time.monotonic() + current.pause
        current.pause = min(2 * current.pause, LAST_PROBE_SECONDS)

    def _start(self, reply: StoredReply) -> None:
        blob = self._blob_of(reply)
        headers = blob.headers(min(self._chunk, self._transport.max_payload))
        self._current = _Sending(reply, blob, headers, self._first_pause)

    def probe_now(self) -> None:
        """Ask for the missing receipt at once: the coordinator or the broker is back."""
        if self._current is not None:
            self._current.probe_at, self._current.pause = 0.0, self._first_pause
            self.advance()

    def _send(self, sending: _Sending, headers: Iterable[ChunkHeader]) -> bool:
        reply = sending.reply

        def topic_of(index: int) -> str:
            return self._topics.reply_chunk(self._agent, reply.client, reply.round, reply.exchange, index)

        return publish_chunks(self._transport, sending.blob, headers, topic_of)

    def send_missing(self, request: MissingMessage) -> None:
        """Send the chunks that have not arrived at the coordinator."""
        current = self._current
        if current is None or request.digest != current.reply.digest:
            return
        missing = decode_bitmap(request.bitmap, len(current.headers))
        self._send(current, [current.headers[i] for i in missing])
        current.sent, current.pause = True, self._first_pause
        current.probe_at = time.monotonic() + current.pause

    def take_receipt(self, receipt: ReceiptMessage) -> StoredReply | None:
        """Handle a receipt. A damaged reply is sent again, at most ``DAMAGES`` times.

        Returns:
            The reply that the receipt settles; None if it settles none.
        """
        current = self._current
        if current is None or receipt.digest != current.reply.digest:
            return None
        if receipt.damaged and current.damages < DAMAGES:
            current.damages += 1
            current.sent, current.probe_at = False, 0.0
            self.advance()
            return None
        self._settled.add(receipt.digest)
        self._current = None
        self.advance()
        return current.reply

    def keep_only(self, is_asked: Callable[[StoredReply], bool]) -> None:
        """Drop waiting replies that a new exchange does not ask for; one that is sent stays until its receipt."""
        self._settled.clear()  # a round that restarts may ask for the same replies
        self._waiting = collections.deque(reply for reply in self._waiting if is_asked(reply))
        current = self._current
        if current is not None and not current.sent and not is_asked(current.reply):
            self._current = None
            self.advance()
