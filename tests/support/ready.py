"""The files of deploy/experiments/: experiments, and the sweeps and published figures beside them."""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.files.yaml_text import load_yaml, read_text

FOLDER = Path(__file__).parents[2] / "deploy" / "experiments"


def ready_files() -> list[Path]:
    """Return all files, sorted."""
    return sorted(FOLDER.rglob("*.yaml"))


def _has_key(path: Path, key: str) -> bool:
    content = load_yaml(read_text(path), str(path))
    return isinstance(content, dict) and key in content


def ready_experiments() -> list[Path]:
    """Return the files that hold one experiment each."""
    return [path for path in ready_files() if _has_key(path, "algorithm")]


def ready_sweeps() -> list[Path]:
    """Return the files that hold a sweep."""
    return [path for path in ready_files() if _has_key(path, "vary")]
