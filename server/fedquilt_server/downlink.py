"""What the coordinator keeps retained at the broker: the patches of the open exchange, and its manifest."""

from __future__ import annotations

import json
import os
from typing import Final

from fedquilt_common.chunks import Blob, read_chunk
from fedquilt_common.messages import PatchMessage, RoundMessage, SliceMessage, TaskMessage
from fedquilt_common.patches import Plan, Publication, SliceEntry, plan
from fedquilt_common.topics import Topics
from fedquilt_common.transport import Transport
from fedquilt_common.types import Arrays, Precision
from fedquilt_server.events import Send
from fedquilt_server.journal import Journal
from fedquilt_server.store import BlobStore

_SLOTS: Final = "slots"


class Downlink:
    """Publishes each patch once into a numbered slot, then the manifest that names it.

    The manifest comes last, so whoever reads it finds its patches in place. Slots are reused; the journal remembers
    how many chunks each has ever held, so that nothing stays behind at the broker.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        store: BlobStore,
        journal: Journal,
        precision: Precision,
        chunk: int,
    ) -> None:
        self._transport = transport
        self._topics = topics
        self._store = store
        self._journal = journal
        self._precision = precision
        self._chunk = chunk
        self._chunks: dict[int, int] = {int(k): v for k, v in json.loads(journal.meta(_SLOTS) or "{}").items()}
        self._filled: dict[int, Blob] = {}
        self._known: dict[int, tuple[Arrays, Blob]] = {}
        self._message: RoundMessage | None = None

    @property
    def digests(self) -> set[str]:
        """Blobs that must stay on disk because they are published."""
        return {blob.digest for blob in self._filled.values()}

    def remember(self, arrays: Arrays, blob: Blob) -> None:
        """``arrays`` lie on disk as ``blob``, in the precision in which they are sent: no need to write them again."""
        self._known = {id(arrays): (arrays, blob)}

    def sent(self, arrays: Arrays) -> Blob | None:
        """``arrays`` as they lie on disk, in the precision in which they are sent, if they do."""
        known = self._known.get(id(arrays))
        return known[1] if known is not None else None

    def publish(self, run: str, send: Send) -> RoundMessage:
        """Open an exchange at the broker; returns its manifest."""
        wanted = plan(send.tasks)
        blobs = [self._blob(publication) for publication in wanted.patches]
        for slot, blob in enumerate(blobs):
            self._fill(slot, blob)
        self._clear_from(len(blobs))
        self._message = _manifest(run, send, wanted, blobs)
        self._send_manifest()
        return self._message

    def publish_again(self) -> None:
        """Everything once more, for a broker that may have lost it."""
        blobs, self._filled = self._filled, {}
        for slot, blob in blobs.items():
            self._fill(slot, blob)
        if self._message is not None:
            self._clear_from(len(blobs))
        self._send_manifest()

    def clear(self) -> None:
        """Leave nothing retained."""
        self._clear_from(0)
        self._message = None
        self._transport.publish(self._topics.round, b"", retain=True)

    def _blob(self, publication: Publication) -> Blob:
        arrays = publication.arrays
        if publication.patch is not None:
            return self._store.put_patch(arrays, publication.patch, self._precision)
        known = self._known.get(id(arrays))
        if known is None:
            known = self._known[id(arrays)] = (arrays, self._store.put(arrays, self._precision))
        return known[1]

    def _fill(self, slot: int, blob: Blob) -> None:
        if self._filled.get(slot) == blob:
            return
        self._filled[slot] = blob
        headers = blob.headers(min(self._chunk, self._transport.max_payload))
        self._note(slot, len(headers))
        descriptor = os.open(blob.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for header in headers:
                topic = self._topics.slice_chunk(slot, header.index)
                payload = read_chunk(descriptor, header)
                if not self._transport.publish(topic, payload, header=header.encode(), retain=True):
                    return  # the connection is gone: all of it is published again when it is back
        finally:
            os.close(descriptor)

    def _note(self, slot: int, chunks: int) -> None:
        held = self._chunks.get(slot, 0)
        surplus = [self._topics.slice_chunk(slot, chunk) for chunk in range(chunks, held)]
        if not all(self._transport.publish(topic, b"", retain=True) for topic in surplus):
            return  # the connection is gone: they are still there, and must not be forgotten
        if held != chunks:
            self._chunks[slot] = chunks
            self._journal.set_meta(_SLOTS, json.dumps(self._chunks))

    def _clear_from(self, first: int) -> None:
        for slot in [s for s in self._chunks if s >= first]:
            self._filled.pop(slot, None)
            self._note(slot, 0)

    def _send_manifest(self) -> None:
        if self._message is not None:
            self._transport.publish(self._topics.round, self._message.encode(), retain=True)


def _manifest(run: str, send: Send, wanted: Plan, blobs: list[Blob]) -> RoundMessage:
    return RoundMessage(
        run=run,
        round=send.round,
        exchange=send.exchange,
        phase="open",
        deadline=send.deadline,
        patches=[PatchMessage(slot=slot, digest=b.digest, size=b.size) for slot, b in enumerate(blobs)],
        tasks=[
            TaskMessage(
                clients=list(group.clients),
                kind=group.task.kind,
                patches=list(group.patches),
                scalars=dict(group.task.scalars),
                slice=group.slice,
            )
            for group in wanted.groups
        ],
        slices=[_slice(entry) for entry in wanted.slices],
        since={str(client): moment for client, moment in send.since.items()},
    )


def _slice(entry: SliceEntry) -> SliceMessage:
    kept = [index_set.encode() for index_set in entry.part.kept]
    return SliceMessage(base=entry.base, kept=kept, absent=sorted(entry.part.absent))
