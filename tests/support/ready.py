"""The files of deploy/experiments/: experiments, and the sweeps and published figures beside them."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "experiments"


def ready_files() -> list[Path]:
    """Return all files, sorted."""
    return sorted(FOLDER.rglob("*.yaml"))


def _has_key(path: Path, key: str) -> bool:
    return re.search(rf"^{key}:", path.read_text(), re.MULTILINE) is not None


def ready_experiments() -> list[Path]:
    """Return the files that hold one experiment each."""
    return [path for path in ready_files() if _has_key(path, "algorithm")]


def ready_sweeps() -> list[Path]:
    """Return the files that hold a sweep."""
    return [path for path in ready_files() if _has_key(path, "vary")]
