"""Write files that only their owner can read, and keep them out of Git."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fedquilt_common.files.durable import create_private, sync

GIT_IGNORE: Final = ".gitignore"


def write_private(path: Path, text: str) -> None:
    """Write a file durably that only its owner can read, even while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = create_private(path.with_name(f".{path.name}.new"))
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def hide_from_git(folder: Path) -> None:
    """Let Git ignore a folder with keys, which may be inside a repository. A ``.gitignore`` that exists is kept."""
    path = folder / GIT_IGNORE
    if not path.exists():
        path.write_text("*\n", encoding="utf-8")
