"""Files that a command writes where its user names them."""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.errors import ExperimentError


def refuse_folder(path: Path, option: str) -> None:
    """Check, before hours of work, that a file can have this name.

    Args:
        path: the file to write.
        option: the command's option that names it.

    Raises:
        ExperimentError: the path is that of a folder.
    """
    if path.is_dir():
        raise ExperimentError(f"{option} {path}: is a folder; name a file in it, or elsewhere")
