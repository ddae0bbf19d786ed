"""Sends replies to the coordinator, each until a receipt settles it: small ones together, large ones one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from fedquilt_client.records import StoredReply
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.wire.bitmaps import decode_bitmap
from fedquilt_common.wire.chunks import Blob, ChunkHeader, publish_chunks
from fedquilt_common.wire.messages import MissingMessage, ReceiptMessage
from fedquilt_common.wire.repairs import FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS, SHORTEST_PROBE_SECONDS
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

DAMAGES: Final = 3
"""How often a reply that arrives damaged is sent again at once."""
TOGETHER: Final = 32
"""Most replies that are sent and wait for their receipts."""
TOGETHER_BYTES: Final = 1024 * 1024
"""The same in bytes; a larger reply is sent alone."""
READINGS: Final = 5
"""How often a reply that cannot be read from the disk is tried before it counts as damaged."""


@dataclass(eq=False)
class _Offer:
    """A reply that is not settled.

    Attributes:
        sent: the whole reply was sent once, so its last chunk is enough to ask for the receipt.
        due: monotonic time in seconds from which a waiting reply may be sent.
        retry_pause: seconds until the next offer after a refusal that is not final, or if the file cannot be read.
        damages: how often it arrived damaged since it was offered.
        failures: how often its file could not be read.
    """

    reply: StoredReply
    pause: float
    sent: bool = False
    due: float = 0.0
    retry_pause: float = SHORTEST_PROBE_SECONDS
    damages: int = 0
    failures: int = 0
    headers: list[ChunkHeader] = field(default_factory=list)


@dataclass
class _Refusal:
    """Why the replies of a client do not count for now.

    Attributes:
        round: the first one with this reason.
        warned: whether the log has a warning of it.
    """

    reason: str
    round: int
    warned: bool = False


class Uploads:
    """Sends replies in order. Without a receipt, it sends a reply's last chunk again, which asks for one.

    Args:
        agent: name of this agent.
        blob_of: returns the bytes of a reply.
        on_damaged: called with a reply whose file does not have its digest, or cannot be read; it is not offered again.
        chunk: largest chunk in bytes.
        speedup: how much faster time passes on a simulated link.
    """

    def __init__(
        self,
        agent: str,
        transport: Transport,
        topics: Topics,
        blob_of: Callable[[StoredReply], Blob],
        on_damaged: Callable[[StoredReply], None],
        chunk: int,
        speedup: float = 1.0,
    ) -> None:
        self._first_pause = max(SHORTEST_PROBE_SECONDS, FIRST_PROBE_SECONDS / speedup)
        self._agent = agent
        self._transport = transport
        self._topics = topics
        self._blob_of = blob_of
        self._on_damaged = on_damaged
        self._chunk = chunk
        self._waiting: dict[str, _Offer] = {}
        self._sending: dict[str, _Offer] = {}
        self._settled: dict[str, StoredReply] = {}
        self._delivered: dict[str, StoredReply] = {}
        self._intact: set[str] = set()
        self._refusals: dict[int, _Refusal] = {}
        """Why the latest reply of each client was refused for now."""

    @property
    def busy(self) -> bool:
        """Whether a reply waits for its receipt."""
        return bool(self._sending or self._waiting)

    def offer(self, reply: StoredReply, *, intact: bool = False) -> None:
        """Send a reply, unless it is settled or under way.

        Args:
            intact: the file was written a moment ago; otherwise its digest is checked before it is sent.
        """
        digest = reply.digest
        if digest in self._settled or digest in self._sending or digest in self._waiting:
            return
        if intact:
            self._intact.add(digest)
        self._waiting[digest] = _Offer(reply, self._first_pause, sent=digest in self._delivered)
        self.advance()

    def advance(self) -> None:
        """Start the next replies that are due, and ask for receipts that are overdue."""
        now = time.monotonic()
        while (offer := self._next_due(now)) is not None and self._has_room(offer):
            del self._waiting[offer.reply.digest]
            self._start(offer)
        for offer in [offer for offer in self._sending.values() if offer.due <= now]:
            self._send_or_ask(offer)

    def _next_due(self, now: float) -> _Offer | None:
        return next((offer for offer in self._waiting.values() if offer.due <= now), None)

    def _has_room(self, offer: _Offer) -> bool:
        sizes = [sending.reply.size for sending in self._sending.values()]
        return not sizes or (len(sizes) < TOGETHER and sum(sizes) + offer.reply.size <= TOGETHER_BYTES)

    def _send_or_ask(self, offer: _Offer) -> None:
        """Send a reply, or ask for its receipt."""
        if offer.sent and not self._transport.drain(0.0):
            return  # on a slow link, chunks of the reply are still in the queue
        if offer.sent:
            log.info("client %d, round %d: asking for its receipt", offer.reply.client, offer.reply.round)
        headers = offer.headers[-1:] if offer.sent else offer.headers
        offer.sent = self._send(offer, headers) or offer.sent
        self._await_receipt(offer)
        offer.pause = min(2 * offer.pause, LAST_PROBE_SECONDS)

    def _await_receipt(self, offer: _Offer) -> None:
        if offer.reply.digest in self._sending:
            offer.due = time.monotonic() + offer.pause

    def _start(self, offer: _Offer) -> None:
        """Begin to send a reply, if its file is intact.

        A file that cannot be read is tried again later: the disk may recover, or others may close files.
        """
        try:
            if not self._is_intact(offer.reply):
                self._on_damaged(offer.reply)
                return
            offer.headers = self._blob_of(offer.reply).headers(min(self._chunk, self._transport.max_payload))
        except OSError as error:
            self._wait_for_disk(offer, error)
            return
        offer.due, offer.pause = 0.0, self._first_pause
        self._sending[offer.reply.digest] = offer

    def _is_intact(self, reply: StoredReply) -> bool:
        if reply.digest not in self._intact and CheckedFile(self._blob_of(reply).path, reply.digest).is_intact():
            self._intact.add(reply.digest)
        return reply.digest in self._intact

    def _wait_for_disk(self, offer: _Offer, error: OSError) -> None:
        reply, path = offer.reply, self._blob_of(offer.reply).path
        log.warning("client %d, round %d: %s cannot be read: %s", reply.client, reply.round, path, error.strerror)
        self._intact.discard(reply.digest)
        offer.failures += 1
        if offer.failures < READINGS:
            self._postpone(offer)
        else:
            self._sending.pop(reply.digest, None)
            self._on_damaged(reply)

    def probe_now(self) -> None:
        """Ask for the missing receipts at once: the coordinator or the broker is back."""
        for offer in self._sending.values():
            offer.due, offer.pause = 0.0, self._first_pause
        self.advance()

    def _send(self, offer: _Offer, headers: Iterable[ChunkHeader]) -> bool:
        """Publish chunks; returns False if the connection was lost, or the file cannot be read now."""
        reply = offer.reply

        def topic_of(index: int) -> str:
            return self._topics.reply_chunk(self._agent, reply.client, reply.round, reply.exchange, index)

        try:
            return publish_chunks(self._transport, self._blob_of(reply), headers, topic_of)
        except OSError as error:
            self._wait_for_disk(offer, error)
            return False

    def send_missing(self, request: MissingMessage) -> None:
        """Send the chunks that have not arrived at the coordinator.

        Raises:
            PayloadError: the bitmap is not valid.
        """
        current = self._sending.get(request.digest)
        if current is None:
            return
        missing = decode_bitmap(request.bitmap, len(current.headers))
        current.sent, current.pause = True, self._first_pause
        self._send(current, [current.headers[i] for i in missing])
        self._await_receipt(current)

    def take_receipt(self, receipt: ReceiptMessage) -> StoredReply | None:
        """Handle a receipt. A reply that arrived damaged is sent again; one that is refused for now waits.

        Returns:
            The reply that the receipt settles; None if it settles none.
        """
        current = self._find_offer(receipt)
        if current is None:
            return None
        if receipt.damaged:
            self._repeat(current)
        elif receipt.final:
            self._settled[receipt.digest] = current.reply
            self._refusals.pop(receipt.client, None)
            self._intact.discard(receipt.digest)
            self._sending.pop(receipt.digest, None)
            self._waiting.pop(receipt.digest, None)
        else:
            self._report_refusal(receipt)
            self._postpone(current)
        self.advance()
        return current.reply if receipt.final and not receipt.damaged else None

    def _report_refusal(self, receipt: ReceiptMessage) -> None:
        """Log why a reply does not count for now: once as a warning if it is so in another round, too.

        No reply of such a training counts, for example if another board hosts the client.
        """
        refusal = self._refusals.get(receipt.client)
        if refusal is None or refusal.reason != receipt.reason:
            refusal = self._refusals[receipt.client] = _Refusal(receipt.reason, receipt.round)
        level = logging.WARNING if refusal.round != receipt.round and not refusal.warned else logging.INFO
        refusal.warned = refusal.warned or level == logging.WARNING
        log.log(level, "client %d, round %d: %s; offering it again", receipt.client, receipt.round, receipt.reason)

    def forget(self, digest: str) -> None:
        """Forget that a reply is settled: if it is offered again, it is sent again."""
        self._settled.pop(digest, None)

    def _find_offer(self, receipt: ReceiptMessage) -> _Offer | None:
        """Return what a receipt answers: a reply under way, or one that was refused for now and is settled now."""
        waiting = self._waiting.get(receipt.digest)
        if waiting is not None and waiting.sent and receipt.final and not receipt.damaged:
            return waiting
        return self._sending.get(receipt.digest)

    def _repeat(self, offer: _Offer) -> None:
        """Send a reply that arrived damaged again, if its file is whole: at once, or after several times later."""
        self._intact.discard(offer.reply.digest)
        if offer.damages < DAMAGES:
            offer.damages += 1
            offer.sent = False
            del self._sending[offer.reply.digest]
            self._start(offer)
        else:
            self._postpone(offer)

    def _postpone(self, offer: _Offer) -> None:
        """Offer a reply again later, by its last chunk, and let other replies pass."""
        self._sending.pop(offer.reply.digest, None)
        offer.damages, offer.due = 0, time.monotonic() + offer.retry_pause
        offer.retry_pause = min(2 * offer.retry_pause, LAST_PROBE_SECONDS)
        self._waiting[offer.reply.digest] = offer

    def review(self, is_asked: Callable[[StoredReply], bool]) -> None:
        """Prepare for a manifest: nothing is settled any more, and what it does not ask for is dropped.

        A reply that was refused, or even accepted, may be needed now: the host of its client has changed, or the
        coordinator has lost it. A reply that is being sent stays until its receipt.
        """
        known = {**self._delivered, **self._settled}
        self._delivered = {digest: reply for digest, reply in known.items() if is_asked(reply)}
        self._settled.clear()
        self._waiting = {digest: offer for digest, offer in self._waiting.items() if is_asked(offer.reply)}
        for offer in self._waiting.values():
            offer.due, offer.retry_pause = 0.0, SHORTEST_PROBE_SECONDS
        self._sending = {d: offer for d, offer in self._sending.items() if offer.sent or is_asked(offer.reply)}
        for offer in self._sending.values():
            offer.due = offer.due if offer.sent else 0.0
        self._intact &= self._sending.keys() | self._waiting.keys()
        self.advance()
