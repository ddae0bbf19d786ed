"""Files reach the disk in another thread; whoever waits for them learns of errors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt_server.runs import background_sync
from fedquilt_server.runs.background_sync import BackgroundSync


class Disk:
    """Replaces ``os.fsync``: it waits for ``go``, and may refuse."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.synced: list[os.stat_result] = []
        self.threads: set[threading.Thread] = set()
        self.error: OSError | None = None

    def fsync(self, descriptor: int) -> None:
        assert self.go.wait(20)
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise self.error
        self.synced.append(os.fstat(descriptor))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(background_sync.os, "fsync", found.fsync)
    yield found
    found.go.set()


@pytest.fixture
def sync() -> Iterator[BackgroundSync]:
    one = BackgroundSync()
    yield one
    one.close()


def file(folder: Path, name: str = "file") -> Path:
    path = folder / name
    path.write_text(name)
    return path


def test_the_caller_goes_on_and_waits_in_the_end(tmp_path: Path, disk: Disk, sync: BackgroundSync) -> None:
    assert sync.is_done
    path = file(tmp_path)
    sync.begin(path)
    assert not sync.is_done
    assert disk.synced == []
    disk.go.set()
    sync.wait()
    assert sync.is_done
    assert [found.st_ino for found in disk.synced] == [path.stat().st_ino]
    assert threading.current_thread() not in disk.threads


def test_a_file_may_be_renamed_or_deleted_meanwhile(tmp_path: Path, disk: Disk, sync: BackgroundSync) -> None:
    renamed, deleted = file(tmp_path, "a"), file(tmp_path, "b")
    sync.begin(renamed)
    sync.begin(deleted)
    renamed.rename(tmp_path / "c")
    deleted.unlink()
    disk.go.set()
    sync.wait()
    assert len(disk.synced) == 2


def test_whoever_waits_learns_that_the_disk_is_full(tmp_path: Path, disk: Disk, sync: BackgroundSync) -> None:
    disk.error = OSError(errno.ENOSPC, "full")
    disk.go.set()
    sync.begin(file(tmp_path))
    with pytest.raises(OSError, match="full"):
        sync.wait()
    assert sync.is_done


def test_few_files_are_open_at_once(
    tmp_path: Path, disk: Disk, sync: BackgroundSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_sync, "_MOST", 2)
    path = file(tmp_path)
    sync.begin(path)
    sync.begin(path)
    threading.Timer(0.05, disk.go.set).start()
    sync.begin(path)
    assert disk.synced
    sync.wait()
    assert len(disk.synced) == 3


def test_closing_waits_and_leaves_no_thread(tmp_path: Path, disk: Disk, sync: BackgroundSync) -> None:
    sync.begin(file(tmp_path))
    disk.go.set()
    sync.close()
    assert len(disk.synced) == 1
    assert not any(thread.is_alive() for thread in disk.threads)
