"""Publishes the patches and the manifest of the open exchange, which the broker retains."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Container, Sequence
from typing import Final

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob, publish_chunks
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, SliceMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport
from fedquilt_server.coordinator.earlier_tasks import find_free_slots
from fedquilt_server.coordinator.publications import Publication, PublicationPlan, SliceEntry
from fedquilt_server.round.events import Send
from fedquilt_server.runs.blob_store import BlobStore, find_damage
from fedquilt_server.runs.journal import Journal

log = logging.getLogger(__name__)

_SLOTS: Final = "slots"


class Downlink:
    """Publishes each patch once into a numbered slot, then the manifest that names the slots.

    The manifest comes last, so an agent that reads it finds its patches in place. Slots are reused. The journal
    stores how many chunks the broker may retain of each slot, so that all of them are cleared at the end of the run.
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
        self._chunks: dict[str, int] = json.loads(journal.meta(_SLOTS) or "{}")
        self._needed: dict[str, int] = {}
        self._filled: dict[str, Blob] = {}
        self._written: dict[int, tuple[Arrays, Blob]] = {}
        self._sources: dict[str, Publication] = {}
        self._message: RoundMessage | None = None

    @property
    def digests(self) -> set[str]:
        """Digests of the blobs that must stay on disk because they are published, or will be."""
        written = (blob for _, blob in self._written.values())
        return {blob.digest for blob in (*self._filled.values(), *written)}

    def remember(self, arrays: Arrays, blob: Blob) -> None:
        """Note that ``blob`` holds ``arrays`` in wire precision, so that they are not written again."""
        self._written = {id(arrays): (arrays, blob)}

    def find_blob(self, arrays: Arrays) -> Blob | None:
        """Return the blob that holds ``arrays`` in wire precision; None if none has been written."""
        entry = self._written.get(id(arrays))
        return entry[1] if entry is not None else None

    def publish(
        self, run: str, send: Send, plan: PublicationPlan, earlier: Sequence[RoundMessage] = ()
    ) -> RoundMessage:
        """Open an exchange at the broker; returns its manifest.

        Args:
            run: identifier of the run.
            plan: what the exchange publishes.
            earlier: the manifests of tasks that go on; their patches stay in their slots.

        Raises:
            RunFolderError: a file cannot be written, or one of a task that goes on is damaged.
            BrokerUnreachableError: the manifest is larger than the broker accepts.
        """
        blobs = [self._blob(publication) for publication in plan.patches]
        self._message = _manifest(run, send, plan, blobs, earlier)
        lasting = {patch.place: self._store.blob(patch.digest) for one in earlier for patch in one.patches}
        own = dict(zip((patch.place for patch in self._message.patches), plan.patches, strict=True))
        self._sources = own | {place: source for place, source in self._sources.items() if place in lasting}
        for place, blob in [*zip(own, blobs, strict=True), *lasting.items()]:
            self._fill(place, blob)
        self._clear_except({*own, *lasting})
        self._send_manifest()
        return self._message

    def publish_again(self) -> None:
        """Publish everything again: the broker may have lost it.

        Raises:
            RunFolderError: a published file is damaged, and so is the file that it was made from.
        """
        blobs, self._filled = self._filled, {}
        for place, blob in blobs.items():
            self._repair(place, blob)
            self._fill(place, blob)
        if self._message is not None:
            self._clear_except(blobs)
        self._send_manifest()

    def _repair(self, place: str, blob: Blob) -> None:
        """Write a damaged file again from the arrays that it was made from."""
        damage = find_damage(blob.path, blob.digest)
        if damage is not None:
            log.warning("%s %s; writing it again", blob.path, damage)
            # its arrays are read from a damaged file, or an earlier process published them
            with contextlib.suppress(OSError, ValueError, PayloadError, KeyError):
                self._write(self._sources[place])
            self._store.blob(blob.digest)

    def confirm(self) -> None:
        """Record that the broker has acknowledged all that was published, and so retains no surplus chunks."""
        self._note_chunks({**self._chunks, **self._needed})

    def clear(self) -> None:
        """Clear everything that is retained."""
        self._clear_except(())
        self._message = None
        self._transport.publish(self._topics.round, b"", retain=True)

    def _blob(self, publication: Publication) -> Blob:
        arrays = publication.arrays
        blob = None if publication.patch is not None else self.find_blob(arrays)
        if blob is None:
            blob = self._write(publication)
            if publication.patch is None:
                self._written[id(arrays)] = (arrays, blob)
        return blob

    def _write(self, publication: Publication) -> Blob:
        if publication.patch is not None:
            return self._store.put_patch(publication.arrays, publication.patch, self._precision)
        return self._store.put(publication.arrays, self._precision, labels=publication.labels)

    def _fill(self, place: str, blob: Blob) -> None:
        if self._filled.get(place) == blob:
            return
        self._filled[place] = blob
        headers = blob.headers(min(self._chunk, self._transport.max_payload))
        self._resize_slot(place, len(headers))
        # if the connection is lost here, everything is published again after the next connect
        publish_chunks(self._transport, blob, headers, lambda index: self._topics.slot_chunk(place, index), retain=True)

    def _resize_slot(self, place: str, chunks: int) -> None:
        held = self._chunks.get(place, 0)
        surplus = [self._topics.slot_chunk(place, chunk) for chunk in range(chunks, held)]
        if not all(self._transport.publish(topic, b"", retain=True) for topic in surplus):
            return  # disconnected: these chunks are still retained, so they stay in the journal
        self._needed[place] = chunks
        self._note_chunks({**self._chunks, place: max(held, chunks)})

    def _note_chunks(self, chunks: dict[str, int]) -> None:
        if chunks != self._chunks:
            self._chunks = chunks
            self._journal.set_meta(_SLOTS, json.dumps(chunks))

    def _clear_except(self, keep: Container[str]) -> None:
        for place in [place for place in self._chunks if place not in keep]:
            self._filled.pop(place, None)
            self._resize_slot(place, 0)

    def _send_manifest(self) -> None:
        if self._message is not None:
            self._transport.publish(self._topics.round, self._message.encode(), retain=True)


def _manifest(
    run: str, send: Send, plan: PublicationPlan, blobs: list[Blob], earlier: Sequence[RoundMessage]
) -> RoundMessage:
    slots = find_free_slots(earlier, len(blobs))
    return RoundMessage(
        run=run,
        round=send.round,
        exchange=send.exchange,
        deadline=send.deadline,
        patches=[
            PatchMessage(slot=slot, digest=blob.digest, size=blob.size, labels=publication.labels)
            for slot, publication, blob in zip(slots, plan.patches, blobs, strict=True)
        ],
        tasks=[
            TaskMessage(
                clients=list(group.clients),
                kind=group.task.kind,
                patches=list(group.patches),
                scalars=dict(group.task.scalars),
                slice=group.slice,
                labels=group.task.labels,
                summed=group.task.summed,
            )
            for group in plan.groups
        ],
        slices=[_slice(entry) for entry in plan.slices],
        since={str(client): asked for client, asked in send.since.items()},
        earlier=list(earlier),
    )


def _slice(entry: SliceEntry) -> SliceMessage:
    kept = [index_set.encode() for index_set in entry.part.kept]
    return SliceMessage(base=entry.base, kept=kept, absent=sorted(entry.part.absent))
