"""Create folders, and name the part of a path that is not a folder."""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.errors import FolderInUseError


def create_folder(folder: Path) -> None:
    """Create ``folder`` and its parents, unless they exist.

    Raises:
        FolderInUseError: it, or a parent, is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next((part for part in (*reversed(folder.parents), folder) if not part.is_dir()), folder)
        raise FolderInUseError(f"{file} is a file, not a folder: choose another folder") from None
