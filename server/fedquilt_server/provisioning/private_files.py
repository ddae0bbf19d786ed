"""Write files that only their owner can read."""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.files.durable import create_private, sync


def write_private(path: Path, text: str) -> None:
    """Write a file durably that only its owner can read, even while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = create_private(path.with_name(f".{path.name}.new"))
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)
