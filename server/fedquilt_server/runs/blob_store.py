"""Durable files named by digest: replies until their round closes, states until the next checkpoint."""

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
    """The blobs of a run.

    Files below ``folder`` are named by the SHA-256 of their content; unfinished ones lie in ``folder/partial``, replies
    in ``folder/replies``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = folder / "partial"
        self.replies = folder / "replies"
        self.replies.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir(exist_ok=True)
        for left_over in self.partial.iterdir():
            left_over.unlink()

    def path(self, digest: str) -> Path:
        """Return the path of the blob with this digest, whether it exists or not."""
        return self.folder / digest

    def reply_path(self, client: ClientId, round: int, exchange: int, digest: str) -> Path:
        """Return the path of a reply; its name has the client's number, so each reply belongs to one client."""
        return self.replies / f"{client}-{round}.{exchange}-{digest}"

    def reply(self, event: Replied) -> FileArrays:
        """Return the arrays of an accepted reply, read when they are used.

        Raises:
            RunFolderError: the file is missing.
        """
        path = self.reply_path(event.client, event.round, event.exchange, event.digest)
        if not path.exists():
            raise RunFolderError(f"{path} is missing from the run folder; the run cannot be resumed")
        return FileArrays(path)

    def blob(self, digest: str) -> Blob:
        """Return the blob with this digest.

        Raises:
            RunFolderError: the file is missing.
        """
        path = self.path(digest)
        try:
            return Blob(path, digest, path.stat().st_size)
        except FileNotFoundError:
            raise RunFolderError(f"{path} is missing from the run folder; the run cannot be resumed") from None

    def arrays(self, digest: str) -> FileArrays:
        """Return the arrays of a blob, read when they are used."""
        return FileArrays(self.blob(digest).path)

    def put(self, arrays: Arrays, precision: Precision = "fp32", *, labels: bool = False) -> Blob:
        """Write arrays durably under their digest; ``labels`` writes them as soft labels."""
        return self._keep(write_arrays(self.partial / "writing", arrays, precision, labels=labels))

    def put_patch(self, arrays: Arrays, patch: Patch, precision: Precision) -> Blob:
        """Write a patch of ``arrays`` durably under its digest."""
        return self._keep(write_patch(self.partial / "writing", arrays, patch, precision))

    def _keep(self, written: Blob) -> Blob:
        target = self.path(written.digest)
        replace_durably(written.path, target)
        return Blob(target, written.digest, written.size, written.head)

    def clean(self, keep: Collection[str]) -> None:
        """Delete all replies, and every blob whose digest is not in ``keep``."""
        for path in [*self.folder.iterdir(), *self.replies.iterdir()]:
            if path.is_file() and path.name not in keep:
                path.unlink()
