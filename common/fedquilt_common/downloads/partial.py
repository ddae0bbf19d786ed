"""The unfinished part of a download: the bytes so far, and beside them a note of what they belong to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedquilt_common.files.durable import write_atomically

OnBytes = Callable[[int, "int | None"], None]
"""Receives the bytes so far, and those of the whole file if they are known."""


@dataclass(frozen=True)
class Origin:
    """The version of a file that the bytes of a part belong to.

    Attributes:
        url: where they come from.
        validator: the server's strong ETag, else the file's date; "" if it sends neither.
        total: bytes of the whole file; None if the server does not report it.
    """

    url: str
    validator: str = ""
    total: int | None = None


@dataclass(frozen=True)
class PartialFile:
    """The bytes of ``target`` so far, in a file beside it whose name ends in ``.part``."""

    target: Path

    @property
    def path(self) -> Path:
        """The file with the bytes."""
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def _note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    def count_bytes(self) -> int:
        """Return the number of bytes so far; 0 if there is no part."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def read_origin(self) -> Origin | None:
        """Return what the bytes belong to; None if that is not known, so that they are of no use."""
        try:
            fields = json.loads(self._note.read_text(encoding="utf-8"))
            total = fields["total"] if isinstance(fields["total"], int) else None
            return Origin(str(fields["url"]), str(fields["validator"]), total)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def restart(self, origin: Origin) -> None:
        """Delete the bytes and begin again with those of ``origin``."""
        self._note.unlink(missing_ok=True)
        self.path.write_bytes(b"")
        write_atomically(self._note, json.dumps(asdict(origin)))

    def discard(self) -> None:
        """Delete the part."""
        self._note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def forget_origin(self) -> None:
        """Delete the note, after the part has become the finished file."""
        self._note.unlink(missing_ok=True)
