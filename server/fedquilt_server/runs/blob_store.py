"""Durable files named by digest: replies until their round closes, states until the next checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.digests import DigestKind, find_sha256
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.files.intact import IntactFiles
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.process.cores import map_in_threads
from fedquilt_common.submodels.patch_layout import Patch, write_patch
from fedquilt_common.types import Arrays, ClientId, Precision
from fedquilt_common.wire.chunks import Assembly, Blob, ChunkHeader, check_size, check_steps
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_server.round.events import Replied
from fedquilt_server.runs.reply_files import DamageError, ReplyFiles, ReplyPlace, reply_name
from fedquilt_server.runs.spare_files import SpareFiles

BLOBS: Final = "blobs"
"""Name of their folder in a run folder."""
REPLIES: Final = "replies"
"""Name of the replies' folder below it."""
_LARGE: Final = 4 * 1024 * 1024
"""Bytes of replies that several threads verify; below, starting them takes longer."""


class DamagedReplyError(RunFolderError):
    """An accepted reply of the open round is damaged or missing; the round can start again without it.

    Attributes:
        event: the reply.
    """

    def __init__(self, path: Path, event: Replied, what: str) -> None:
        super().__init__(
            f"{path}, the reply of client {event.client} to round {event.round}, exchange {event.exchange}, {what}"
        )
        self.path = path
        self.event = event


class BlobStore:
    """The blobs of a run.

    Files below ``folder`` are named by the digest of their content; unfinished ones lie in ``folder/partial``, replies
    in ``folder/replies`` (``ReplyFiles``).

    Args:
        folder: where they are; it is created.
        digest: which digest names new blobs. A task's fingerprint depends on the digests of its patches. So a run that
            has begun with SHA-256 must keep it: otherwise, its boards would train again.
    """

    def __init__(self, folder: Path, digest: DigestKind = "xxh3") -> None:
        self.folder = folder
        self._digest = digest
        self._intact = IntactFiles()
        self.partial = folder / "partial"
        with report_run_errors(folder):
            (folder / REPLIES).mkdir(parents=True, exist_ok=True)
            self.partial.mkdir(exist_ok=True)
            for left_over in self.partial.iterdir():
                left_over.unlink()
            self.replies = ReplyFiles(folder / REPLIES)
        self._spares = SpareFiles(self.partial)
        self._serial = 0

    def path(self, digest: str) -> Path:
        """Return the path of the blob with this digest, whether it exists or not."""
        return self.folder / digest

    def load_replies(self, events: Sequence[Replied]) -> list[Arrays]:
        """Return the arrays of accepted replies, read when they are used; the members of a partial sum share it.

        Raises:
            DamagedReplyError: the bytes of one do not have the reply's digest, or are missing; or the members of a sum
                are not complete.
        """
        files = {event.file: event for event in events}
        self.check_sums(events)
        places = [self._place(event) for event in files.values()]
        size = sum(_LARGE if place.size is None else place.size for place in places)
        loaded = map_in_threads(self._load_each, list(files.values()), worth=size >= _LARGE)
        arrays = dict(zip(files, loaded, strict=True))
        return [arrays[event.file] for event in events]

    def check_sums(self, events: Iterable[Replied]) -> None:
        """Check that each partial sum has all of its members among accepted replies.

        Raises:
            DamagedReplyError: the journal has lost some of them.
        """
        groups: dict[tuple[ClientId, int, int, str], list[Replied]] = {}
        for event in events:
            if event.carrier is not None:
                groups.setdefault(event.file, []).append(event)
        for members in groups.values():
            first = max(members, key=lambda event: event.more)
            if len(members) != first.more + 1:
                why = f"is a partial sum of {first.more + 1} replies, of which the journal has {len(members)}"
                raise DamagedReplyError(self._place(first).path, first, why)

    def verify(self, event: Replied) -> None:
        """Verify an accepted reply.

        Raises:
            DamagedReplyError: its bytes do not have the reply's digest, or are missing.
        """
        self._load(event)

    def _load_each(self, events: Sequence[Replied]) -> list[Arrays]:
        return [self._load(event) for event in events]

    def _load(self, event: Replied) -> Arrays:
        place = self._place(event)
        try:
            arrays = place.load(event.digest, intact=self._intact.find(place.path) is not None)
        except DamageError as damage:
            raise DamagedReplyError(place.path, event, str(damage)) from None
        return arrays if event.carrier is None else PartialSum(arrays)

    def _place(self, event: Replied) -> ReplyPlace:
        return self.replies.find(_name_of(event))

    def begin_reply(self, first: ChunkHeader, limit: int) -> Assembly:
        """Return the assembly of a reply, written over the one of an earlier round if there is any.

        Args:
            first: the header of one of its chunks.
            limit: largest accepted size in bytes.

        Raises:
            PayloadError: the reply is larger than ``limit``, or its chunks are smaller than those of any link.
        """
        check_size(first, limit)
        check_steps(first)
        self._serial += 1
        path = self.partial / str(self._serial)
        return Assembly(path, first, limit, durable=True, over=self._spares.take(first.size))

    def keep_reply(self, assembly: Assembly, name: str) -> Blob:
        """Move a reply that has arrived, too large for a segment, to its place; it is verified.

        The disk begins to write what is left of it. It is durable after ``sync_replies``.

        Raises:
            DamagedTransferError: the bytes do not have the transfer's digest.
        """
        blob = assembly.finish(self.replies.path(name), wait=False)
        self.replies.add(name)
        self._intact.add(blob.path)
        return blob

    def sync_replies(self) -> None:
        """Make all replies durable.

        Raises:
            RunFolderError: the disk is full or broken.
        """
        with report_run_errors(self.replies.folder):
            self.replies.sync()

    def discard(self, damage: DamagedReplyError) -> None:
        """Delete a damaged reply, so that its client can send it again."""
        with report_run_errors(damage.path):
            self.replies.forget(_name_of(damage.event))

    def blob(self, digest: str) -> Blob:
        """Return the blob with this digest.

        Raises:
            RunFolderError: the file does not have the digest, or is missing.
        """
        path = self.path(digest)
        damage = find_damage(path, digest)
        if damage is not None:
            raise RunFolderError(
                f"{path} {damage}. Restore the file from a backup (its name is its digest), or start again with "
                "another --out"
            )
        return Blob(path, digest, path.stat().st_size)

    def arrays(self, digest: str) -> FileArrays:
        """Return the arrays of a blob that ``blob`` has verified, read when they are used."""
        with report_run_errors(self.path(digest)):
            return FileArrays(self.path(digest))

    def sha256(self, digest: str) -> str:
        """Return the SHA-256 of a blob that ``blob`` has verified."""
        with report_run_errors(self.path(digest)), self.path(digest).open("rb", buffering=0) as file:
            return find_sha256(file, digest)

    def put(self, arrays: Arrays, precision: Precision = "fp32", *, labels: bool = False) -> Blob:
        """Write arrays durably under their digest; ``labels`` writes them as soft labels."""
        with report_run_errors(self.partial):
            path, spare, digest = self.partial / "writing", self._spares.take, self._digest
            written = write_arrays(path, arrays, precision, digest=digest, labels=labels, durable=True, spare=spare)
            return self._keep(written)

    def put_patch(self, arrays: Arrays, patch: Patch, precision: Precision) -> Blob:
        """Write a patch of ``arrays`` durably under its digest."""
        with report_run_errors(self.partial):
            return self._keep(write_patch(self.partial / "writing", arrays, patch, precision, self._digest))

    def _keep(self, written: Blob) -> Blob:
        target = self.path(written.digest)
        replace_durably(written.path, target)
        return Blob(target, written.digest, written.size, written.head)

    def clean(self, keep: Collection[str], *, replies: Collection[Replied] | None = (), reuse: bool = False) -> None:
        """Delete what is not needed any more.

        Args:
            keep: digests of the blobs that stay.
            replies: the replies that stay; None for all.
            reuse: whether more blobs come, which are written over those that do not stay.
        """
        with report_run_errors(self.folder):
            old = [path for path in self.folder.iterdir() if path.is_file() and path.name not in keep]
            if replies is None:
                self.replies.end_segment()
            else:
                old += self.replies.clear({_name_of(event) for event in replies})
            self._spares.retire(old)
            if not reuse:
                self._spares.clear()

    def close(self) -> None:
        """Close the replies, and delete the spare files; what cannot be deleted, the next start deletes."""
        self.replies.close()
        with suppress(OSError):
            self._spares.clear()


def _name_of(event: Replied) -> str:
    return reply_name(*event.file)


def find_damage(path: Path, digest: str) -> str | None:
    """Return how a file differs from its ``digest``, in words; None if it is intact."""
    return ReplyPlace(path).find_damage(digest)
