"""Assembles the replies of the boards behind a site on the disk of the site's relay."""

from __future__ import annotations

import errno
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from fedquilt_client.downloads import DISK_RESERVE
from fedquilt_client.records import StoredReply, name_reply
from fedquilt_client.store import DRAFTS, Drafts, RunStore
from fedquilt_client.tasks import OpenTask, TaskId
from fedquilt_common.errors import DamagedTransferError, FedquiltError
from fedquilt_common.flood_control.limits import TRANSFERS_PER_CLIENT
from fedquilt_common.wire.chunks import Assembly, Blob, ChunkHeader, check_size, check_steps, read_whole
from fedquilt_common.wire.topics import Address

LARGEST_SHARE: Final = 16
"""How many times the patches of its task a reply may be large."""
LARGEST_REST: Final = 64 * 1024 * 1024
"""Bytes that any reply may have besides."""
TransferKey = tuple[str, int, str]
"""Board, client and digest."""


class NoRoomError(FedquiltError):
    """The disk of the relay has no room for a reply now."""


@dataclass
class _UnfinishedReply:
    task: TaskId
    assembly: Assembly


class SiteIntake:
    """The unfinished replies of a run.

    Args:
        store: of the run.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._transfers: dict[TransferKey, _UnfinishedReply] = {}
        self._serial = 0

    def take(self, address: Address, header: ChunkHeader, payload: bytes, task: OpenTask) -> Blob | None:
        """Add one chunk; returns the reply as a draft, verified by its digest, once it is complete.

        Raises:
            DamagedTransferError: bytes were lost or changed on the way.
            PayloadError: the reply is too large, or its chunks are too small.
            NoRoomError: the disk is full.
        """
        if header.index != address.chunk:
            raise DamagedTransferError(f"chunk {header.index} arrived on the topic of chunk {address.chunk}")
        check_size(header, LARGEST_SHARE * sum(patch.size for patch in task.patches) + LARGEST_REST)
        check_steps(header)
        with self._reporting_no_room():
            if header.count == 1:
                self._check_room(header)
                return self._write(header, read_whole(header, payload))
            assembly = self._assembly(address, header, task)
            if not assembly.add(header, payload):
                return None
            del self._transfers[address.agent, address.client, header.digest]
            return assembly.finish(self._draft())

    def missing(self, address: Address, digest: str) -> Assembly | None:
        """Return a transfer that lacks chunks; None if it has not begun."""
        transfer = self._transfers.get((address.agent, address.client, digest))
        return None if transfer is None else transfer.assembly

    def keep(self, tasks: Container[TaskId]) -> None:
        """Drop what is under way to other tasks."""
        for key in [key for key, transfer in self._transfers.items() if transfer.task not in tasks]:
            self._transfers.pop(key).assembly.discard()

    def commit(self, blob: Blob, task: OpenTask) -> StoredReply:
        """Move a draft to where a restarted relay finds it.

        Raises:
            NoRoomError: the disk is full.
        """
        name = name_reply(*task.message.id, task.fingerprint, blob.digest, blob.head)
        ids = self._store.run.run, task.client, *task.message.id, task.fingerprint
        reply = StoredReply(*ids, name, blob.digest, blob.size, blob.head)
        with self._reporting_no_room():
            self._store.commit(reply, Drafts(blob.path, blob.path), None, memory=None)
        return reply

    @contextmanager
    def _reporting_no_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoRoomError(f"the disk of the site's relay is full: free space in {self._store.folder}") from error

    def _draft(self) -> Path:
        self._serial += 1
        return self._store.folder / DRAFTS / f"{self._serial}.taken"

    def _write(self, header: ChunkHeader, content: bytes) -> Blob:
        path = self._draft()
        path.write_bytes(content)
        return Blob(path, header.digest, len(content), len(header.head))

    def _assembly(self, address: Address, header: ChunkHeader, task: OpenTask) -> Assembly:
        key = address.agent, address.client, header.digest
        if key in self._transfers and not self._transfers[key].assembly.fits(header):  # cut again
            self._transfers.pop(key).assembly.discard()
        if key not in self._transfers:
            self._make_room(address, header)
            assembly = Assembly(self._draft().with_suffix(".part"), header, header.size)
            self._transfers[key] = _UnfinishedReply(task.id, assembly)
        return self._transfers[key].assembly

    def _make_room(self, address: Address, header: ChunkHeader) -> None:
        own = [key for key in self._transfers if key[:2] == (address.agent, address.client)]
        if len(own) >= TRANSFERS_PER_CLIENT:
            self._transfers.pop(own[0]).assembly.discard()
        self._check_room(header)

    def _check_room(self, header: ChunkHeader) -> None:
        """Check that a reply fits beside what the unfinished ones still need."""
        promised = sum(transfer.assembly.unwritten for transfer in self._transfers.values())
        free = psutil.disk_usage(str(self._store.folder)).free - promised
        if header.size > free - DISK_RESERVE:
            raise NoRoomError(
                f"the relay of the site has no room for {header.size} bytes: {free} bytes are free in "
                f"{self._store.folder}, and {DISK_RESERVE} must stay free"
            )
