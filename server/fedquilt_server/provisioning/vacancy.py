"""Check that a folder can become that of a new federation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fedquilt_common.errors import FederationError
from fedquilt_common.files.locking import LOCK
from fedquilt_server.provisioning.private_files import GIT_IGNORE
from fedquilt_server.provisioning.record import RECORD, read_record

AUTHORITY: Final = "authority"
"""Folder of the certificate authority's files, in that of the federation."""


def check_vacant(folder: Path) -> None:
    """Check that a folder, if it exists, is empty, or holds only what an interrupted command leaves.

    Raises:
        FederationError: it holds a federation, or other files.
    """
    if (folder / RECORD).exists():
        raise FederationError(f"{folder} holds the federation {read_record(folder).name!r}: choose another --folder")
    if others := sorted(path.name for path in folder.glob("*") if not _is_left_over(path)):
        raise FederationError(
            f"{folder} is not empty (it holds {others[0]}), and a federation has a folder of its own: choose another "
            "--folder"
        )


def _is_left_over(path: Path) -> bool:
    """Whether an interrupted command may have left it: an authority without a certificate has signed nothing."""
    return path.name in (LOCK, GIT_IGNORE) or (path.name == AUTHORITY and not (path / "ca.crt").exists())
