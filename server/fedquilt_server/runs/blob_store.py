"""Durable blobs by digest: replies until their round is closed, states until the next checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.submodels.patch_layout import Patch, write_patch
from fedquilt_common.types import Arrays, ClientId, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_server.round.events import Replied


class BlobStore:
    """Files named by the SHA-256 of their content below ``folder``; unfinished ones below ``folder/partial``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = folder / "partial"
        self.replies = folder / "replies"
        self.replies.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir(exist_ok=True)
        for left_over in self.partial.iterdir():
            left_over.unlink()

    def path(self, digest: str) -> Path:
        return self.folder / digest

    def reply_path(self, client: ClientId, round: int, exchange: int, digest: str) -> Path:
        """Where a reply lies: its client is part of the name, so nobody's bytes can stand for another's."""
        return self.replies / f"{client}-{round}.{exchange}-{digest}"

    def reply(self, event: Replied) -> FileArrays:
        """The arrays of an accepted reply, read lazily."""
        path = self.reply_path(event.client, event.round, event.exchange, event.digest)
        if not path.exists():
            raise RunFolderError(f"{path} is missing from the run folder; the run cannot be resumed")
        return FileArrays(path)

    def blob(self, digest: str) -> Blob:
        """The blob; raises RunFolderError when the file is gone."""
        path = self.path(digest)
        try:
            return Blob(path, digest, path.stat().st_size)
        except FileNotFoundError:
            raise RunFolderError(f"{path} is missing from the run folder; the run cannot be resumed") from None

    def arrays(self, digest: str) -> FileArrays:
        """The arrays of a blob, read lazily."""
        return FileArrays(self.blob(digest).path)

    def put(self, arrays: Arrays, precision: Precision = "fp32", *, labels: bool = False) -> Blob:
        """Write arrays durably under their digest; ``labels``: as soft labels."""
        return self._kept(write_arrays(self.partial / "writing", arrays, precision, labels=labels))

    def put_patch(self, arrays: Arrays, patch: Patch, precision: Precision) -> Blob:
        """Write one patch of ``arrays`` durably under its digest."""
        return self._kept(write_patch(self.partial / "writing", arrays, patch, precision))

    def _kept(self, written: Blob) -> Blob:
        target = self.path(written.digest)
        replace_durably(written.path, target)
        return Blob(target, written.digest, written.size, written.head)

    def clean(self, keep: Collection[str]) -> None:
        """After a checkpoint: delete all replies, and every blob but those in ``keep``."""
        for path in [*self.folder.iterdir(), *self.replies.iterdir()]:
            if path.is_file() and path.name not in keep:
                path.unlink()
