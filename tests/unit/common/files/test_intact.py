"""A file that was found intact counts as intact while it does not change, and for a minute."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedquilt_common.files import intact
from fedquilt_common.files.intact import IntactFiles, version_of


def rewrite(path: Path) -> None:
    os.utime(path, ns=(0, 0))  # as a copy that keeps times would
    path.write_bytes(b"new")


def replace(path: Path) -> None:
    """The new file has the old one's size and time."""
    status, other = path.stat(), path.with_name("other")
    other.write_bytes(b"new")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, replace, Path.unlink])
def test_a_file_that_changes_is_not_known_any_more(tmp_path: Path, change: Callable[[Path], None]) -> None:
    files, path = IntactFiles(), tmp_path / "file"
    path.write_bytes(b"old")
    assert files.find(path) is None
    files.add(path)
    assert files.find(path) == version_of(path)
    assert version_of(path) is not None
    change(path)
    assert files.find(path) is None


def test_after_a_minute_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path, now = IntactFiles(), tmp_path / "file", 100.0
    monkeypatch.setattr(intact.time, "monotonic", lambda: now)
    path.write_bytes(b"old")
    files.add(path)
    now += 59.0
    assert files.find(path) is not None
    now += 2.0
    assert files.find(path) is None


def test_a_missing_file_is_not_remembered(tmp_path: Path) -> None:
    files = IntactFiles()
    files.add(tmp_path / "missing")
    assert files.find(tmp_path / "missing") is None
    assert version_of(tmp_path / "missing") is None
