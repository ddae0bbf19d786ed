"""Patches on their way to this board: assembled on disk as chunks come, and asked for again when some do not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

import psutil

from fedquilt_client.store import RunStore
from fedquilt_common.wire.chunks import Assembly, ChunkHeader
from fedquilt_common.wire.messages import PatchMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)

REPAIR_SECONDS: Final = 3.0
SHORTEST_REPAIR_SECONDS: Final = 0.2
LONGEST_REPAIR_SECONDS: Final = 300.0
PATIENCE: Final = 4.0
"""Times the longest gap between two chunks that is waited before any is taken for lost."""
SINGLE_REPAIRS: Final = 32
"""Up to so many missing chunks are asked for one by one; more, and the whole slot is."""
DISK_RESERVE: Final = 64 * 1024 * 1024


class Downloads:
    """Patches of one run. A slot holds one patch at a time, so there is at most one assembly a slot."""

    def __init__(self, store: RunStore, transport: Transport, topics: Topics, speedup: float = 1.0) -> None:
        """``speedup``: how many times as fast time passes on the link, if that is a simulated one."""
        self._store = store
        self._transport = transport
        self._topics = topics
        self._assemblies: dict[str, Assembly] = {}
        self._subscribed: set[str] = set()
        self._wanted: dict[str, PatchMessage] = {}
        self._quiet_since, self._asked, self._gap = time.monotonic(), True, 0.0
        self._first_pause = max(SHORTEST_REPAIR_SECONDS, REPAIR_SECONDS / speedup)
        self._pause = self._first_pause

    def want(self, patches: Iterable[PatchMessage]) -> None:
        """From now on these patches are needed, and no others."""
        self._wanted = {patch.place: patch for patch in patches}
        self._store.keep_patches({patch.digest for patch in self._wanted.values()})
        self._quiet_since, self._asked, self._gap = time.monotonic(), True, 0.0
        self._pause = self._first_pause
        self._follow(set(self._wanted))

    def _follow(self, places: set[str]) -> None:
        self._transport.unsubscribe(self._topics.slot_chunks(place) for place in self._subscribed - places)
        self._transport.subscribe(self._topics.slot_chunks(place) for place in places - self._subscribed)
        for place in self._subscribed - places:
            self._drop(place)
        self._subscribed = set(places)

    def reconnected(self, session_present: bool) -> None:
        """The broker may have forgotten our subscriptions."""
        if not session_present:
            places, self._subscribed = self._subscribed, set()
            self._follow(places)

    def has(self, patches: Iterable[PatchMessage]) -> bool:
        """Whether all of these are here, verified."""
        return all(self._store.patch(patch.digest).exists() for patch in patches)

    def take(self, address: Address, header_bytes: bytes, payload: bytes) -> bool:
        """One chunk; True when it completed a patch.

        Raises:
            PayloadError: when it is not a chunk, too large for this disk, or completes to other bytes than announced.
        """
        if not (header_bytes or payload) or address.place not in self._subscribed:  # a slot that is cleared
            return False
        self._arrived()
        header = ChunkHeader.decode(header_bytes)
        target = self._store.patch(header.digest)
        if target.exists():
            return False
        assembly = self._assembly(address.place, header)
        if not assembly.add(header, payload):
            return False
        del self._assemblies[address.place]
        assembly.finish(target)
        return True

    def _arrived(self) -> None:
        """Something moves: be patient for as long as gaps are on this link, unless we have made this one ourselves."""
        now = time.monotonic()
        if not self._asked:
            self._gap = max(self._gap, now - self._quiet_since)
        self._quiet_since, self._asked = now, False
        self._pause = min(max(self._first_pause, PATIENCE * self._gap), LONGEST_REPAIR_SECONDS)

    def _assembly(self, place: str, header: ChunkHeader) -> Assembly:
        known = self._assemblies.get(place)
        if known is None or not known.fits(header):
            self._drop(place)
            free = psutil.disk_usage(str(self._store.folder)).free - DISK_RESERVE
            path = self._store.patches / f"{header.digest}.{place.replace('/', '-')}.part"
            known = self._assemblies[place] = Assembly(path, header, max(0, free))
        return known

    def _drop(self, place: str) -> None:
        assembly = self._assemblies.pop(place, None)
        if assembly is not None:
            assembly.discard()

    def repair(self) -> None:
        """Ask again for what has not come although nothing moves."""
        lacking = [patch for patch in self._wanted.values() if not self.has([patch])]
        if not lacking or time.monotonic() - self._quiet_since < self._pause:
            return
        self._pause = min(
            2 * self._pause, LONGEST_REPAIR_SECONDS
        )  # on a link that is only slow, asking again makes it slower
        self._quiet_since, self._asked = time.monotonic(), True
        for patch in lacking:
            self._ask_again(patch)

    def _ask_again(self, patch: PatchMessage) -> None:
        """Retained messages come anew with a new subscription: only those of the missing chunks if they are few."""
        assembly = self._assemblies.get(patch.place)
        log.warning("what lies at %s is not complete: asking for it again", patch.place)
        if assembly is None or assembly.digest != patch.digest or len(assembly.missing) > SINGLE_REPAIRS:
            self._transport.unsubscribe([self._topics.slot_chunks(patch.place)])
            self._transport.subscribe([self._topics.slot_chunks(patch.place)])
            return
        single = [self._topics.slot_chunk(patch.place, chunk) for chunk in sorted(assembly.missing)]
        self._transport.subscribe(single)
        self._transport.unsubscribe(single)

    def close(self) -> None:
        """Stop following the broker's slots."""
        self._follow(set())
