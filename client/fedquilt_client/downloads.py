"""Download patches: assemble their chunks on disk and request lost chunks again."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

import psutil

from fedquilt_client.store import RunStore
from fedquilt_common.errors import PayloadError, RunFolderError
from fedquilt_common.wire.chunks import Assembly, ChunkHeader
from fedquilt_common.wire.repairs import LONGEST_REPAIR_SECONDS, PATIENCE, SINGLE_REPAIRS, first_repair_pause
from fedquilt_common.wire.round_messages import PatchMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

DISK_RESERVE: Final = 64 * 1024 * 1024
"""Bytes of the disk that downloads leave free."""


class Downloads:
    """The downloads of one run. A slot holds one patch at a time, so each slot has at most one assembly."""

    def __init__(self, store: RunStore, transport: Transport, topics: Topics, speedup: float = 1.0) -> None:
        """Start without patches to download.

        Args:
            store: where the run's patches are stored.
            transport: the connection to the broker.
            topics: the topics of the federation.
            speedup: how many times faster time passes on a simulated link; 1 for a real link.
        """
        self._store = store
        self._transport = transport
        self._topics = topics
        self._assemblies: dict[str, Assembly] = {}
        self._subscribed: set[str] = set()
        self._wanted: dict[str, PatchMessage] = {}
        self._quiet_since, self._repaired, self._longest_gap = time.monotonic(), True, 0.0
        self._speedup = speedup
        self._pause = self._first_pause = self._choose_first_pause()

    def want(self, patches: Iterable[PatchMessage]) -> None:
        """Download these patches; delete all others and stop following their slots.

        What arrives in one of their slots stays: it may be the next round's, whose manifest follows.
        """
        self._wanted = {patch.place: patch for patch in patches}
        self._quiet_since, self._repaired, self._longest_gap = time.monotonic(), True, 0.0
        self._pause = self._first_pause = self._choose_first_pause()
        self._subscribe_to(set(self._wanted))
        arriving = {assembly.digest for assembly in self._assemblies.values()}
        self._store.keep_patches(arriving.union(patch.digest for patch in self._wanted.values()))

    def _choose_first_pause(self) -> float:
        """Return how long no chunk may arrive before the first repair."""
        return first_repair_pause(max((patch.size for patch in self._wanted.values()), default=0), self._speedup)

    def _subscribe_to(self, places: set[str]) -> None:
        self._transport.unsubscribe(self._topics.slot_chunks(place) for place in self._subscribed - places)
        self._transport.subscribe(self._topics.slot_chunks(place) for place in places - self._subscribed)
        for place in self._subscribed - places:
            self._discard(place)
        self._subscribed = set(places)

    def reconnect(self, session_present: bool) -> None:
        """Subscribe again if the broker kept no session.

        Args:
            session_present: whether the broker kept the session with its subscriptions.
        """
        if not session_present:
            places, self._subscribed = self._subscribed, set()
            self._subscribe_to(places)

    def has(self, patches: Iterable[PatchMessage]) -> bool:
        """Return whether all these patches are complete and verified."""
        return all(self._store.patch(patch.digest).exists() for patch in patches)

    def take(self, address: Address, header_bytes: bytes, payload: bytes) -> bool:
        """Store one chunk.

        Args:
            address: the slot and chunk of the message's topic.
            header_bytes: the encoded ``ChunkHeader``.
            payload: the chunk's bytes.

        Returns:
            Whether the chunk completed a patch.

        Raises:
            PayloadError: the message is not a chunk, the patch's digest is wrong, or a patch that no task of this
                board names does not fit on the disk.
            RunFolderError: a patch that a task names does not fit on the disk.
        """
        if not (header_bytes or payload) or address.place not in self._subscribed:  # the slot was cleared
            return False
        self._note_arrival()
        header = ChunkHeader.decode(header_bytes)
        target = self._store.patch(header.digest)
        if target.exists():
            return False
        assembly = self._assembly_for(address.place, header)
        if not assembly.add(header, payload):
            return False
        del self._assemblies[address.place]
        assembly.finish(target)
        self._store.intact.add(target)
        return True

    def _note_arrival(self) -> None:
        """Adapt the pause before a repair to the gaps on this link.

        A gap with a repair does not count, because the chunk may have been lost. The pause stays doubled after it, so
        that a link on which each chunk takes longer than the first pause has a gap without a repair next.
        """
        now = time.monotonic()
        if not self._repaired:
            self._longest_gap = max(self._longest_gap, now - self._quiet_since)
            self._pause = min(max(self._first_pause, PATIENCE * self._longest_gap), LONGEST_REPAIR_SECONDS)
        self._quiet_since, self._repaired = now, False

    def _assembly_for(self, place: str, header: ChunkHeader) -> Assembly:
        assembly = self._assemblies.get(place)
        if assembly is None or not assembly.fits(header):
            self._discard(place)
            self._check_room(place, header)
            path = self._store.patches / f"{header.digest}.{place.replace('/', '-')}.part"
            assembly = self._assemblies[place] = Assembly(path, header, header.size)
        return assembly

    def _check_room(self, place: str, header: ChunkHeader) -> None:
        """Check that a patch fits on the disk; one that is not wanted may be for a board with more room."""
        free = psutil.disk_usage(str(self._store.folder)).free
        if header.size <= free - DISK_RESERVE:
            return
        problem = (
            f"a patch of {header.size} bytes does not fit into {self._store.folder}: {free} bytes are free there, and "
            f"{DISK_RESERVE} must stay free"
        )
        wanted = self._wanted.get(place)
        if wanted is None or wanted.digest != header.digest or header.size > wanted.size:
            raise PayloadError(f"{problem}. No task of this board names it")
        raise RunFolderError(f"{problem}. Free disk space, then start the agent again")

    def _discard(self, place: str) -> None:
        assembly = self._assemblies.pop(place, None)
        if assembly is not None:
            assembly.discard()

    def repair(self) -> None:
        """Request incomplete patches again if no chunk arrived for a while."""
        incomplete = [patch for patch in self._wanted.values() if not self.has([patch])]
        if not incomplete or time.monotonic() - self._quiet_since < self._pause:
            return
        self._pause = min(2 * self._pause, LONGEST_REPAIR_SECONDS)  # repairs make a slow link slower
        self._quiet_since, self._repaired = time.monotonic(), True
        for patch in incomplete:
            self._request_again(patch)

    def fetch_again(self, digest: str) -> None:
        """Delete a damaged patch and request it again."""
        self._store.patch(digest).unlink(missing_ok=True)
        for patch in self._wanted.values():
            if patch.digest == digest:
                self._discard(patch.place)
                self._request_again(patch)

    def _request_again(self, patch: PatchMessage) -> None:
        """Subscribe again, so that the broker resends the retained chunks: only the missing ones if they are few."""
        assembly = self._assemblies.get(patch.place)
        log.warning("the patch at %s is incomplete: requesting its chunks again", patch.place)
        if assembly is None or assembly.digest != patch.digest or len(assembly.missing) > SINGLE_REPAIRS:
            self._transport.unsubscribe([self._topics.slot_chunks(patch.place)])
            self._transport.subscribe([self._topics.slot_chunks(patch.place)])
            return
        single = [self._topics.slot_chunk(patch.place, chunk) for chunk in sorted(assembly.missing)]
        self._transport.subscribe(single)
        self._transport.unsubscribe(single)

    def close(self) -> None:
        """Unsubscribe from all slots."""
        self._subscribe_to(set())
