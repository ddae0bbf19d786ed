"""A file that was found intact counts as intact while it does not change, and for a minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedquilt_common.files.file_stamp import stamp
from fedquilt_common.files.intact import IntactFiles


def write_later(path: Path) -> None:
    path.write_bytes(b"new")
    os.utime(path, (1.0, 1.0))  # a clock that ticks slowly may give both writes one time


def lengthen(path: Path) -> None:
    """Write more bytes, and keep the times."""
    status = path.stat()
    path.write_bytes(b"longer")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    """Replace the file by one of its size and times."""
    status, other = path.stat(), path.with_name("other")
    other.write_bytes(b"new")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [write_later, lengthen, replace, Path.unlink])
def test_a_file_that_changes_is_not_known_any_more(tmp_path: Path, change: Callable[[Path], None]) -> None:
    files, path = IntactFiles(), tmp_path / "file"
    path.write_bytes(b"old")
    assert files.find(path) is None
    files.add(path)
    found = files.find(path)
    assert found is not None
    assert found == stamp(path)
    change(path)
    assert files.find(path) is None


def test_after_a_minute_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path, now = IntactFiles(), tmp_path / "file", 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
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
