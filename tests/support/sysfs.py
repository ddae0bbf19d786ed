"""Writes the recorded files of a board below a folder, which the power sensors then read as if it were ``/``."""

from __future__ import annotations

from pathlib import Path

RECORDED = Path(__file__).parents[1] / "unit" / "client" / "sysfs"


def write_board(name: str, root: Path) -> Path:
    """Write the files of ``tests/unit/client/sysfs/NAME.txt`` below ``root``; return ``root``."""
    for line in (RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        path, _, content = line.partition(" = ")
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.replace("\\0", "\0") + "\n")
    return root
