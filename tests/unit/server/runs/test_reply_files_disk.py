"""Large replies reach the disk in another thread; whoever waits for them learns of errors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt_server.runs.reply_files import ReplyFiles


class Disk:
    """Replaces ``os.fsync`` in another thread: it waits for ``go``, and may refuse."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.synced: list[int] = []
        self.error: OSError | None = None
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        if threading.current_thread() is threading.main_thread():
            return self._fsync(descriptor)
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return self.synced.append(os.fstat(descriptor).st_ino)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(os, "fsync", found.fsync)
    yield found
    found.go.set()


@pytest.fixture
def replies(tmp_path: Path, disk: Disk) -> Iterator[ReplyFiles]:
    made = ReplyFiles(tmp_path)
    yield made
    disk.go.set()
    made.close()


def write(replies: ReplyFiles, name: str) -> int:
    path = replies.path(name)
    path.write_text(name)
    replies.add(name)
    return path.stat().st_ino


def test_the_caller_goes_on_until_it_needs_the_files(replies: ReplyFiles, disk: Disk) -> None:
    assert replies.is_synced
    number = write(replies, "a")
    assert not replies.is_synced
    assert disk.synced == []
    disk.go.set()
    replies.sync()
    assert replies.is_synced
    assert disk.synced == [number]


def test_a_file_may_be_deleted_while_it_waits(replies: ReplyFiles, disk: Disk) -> None:
    numbers = [write(replies, name) for name in "abc"]
    replies.forget("b")
    disk.go.set()
    replies.sync()
    assert disk.synced == [numbers[0], numbers[2]]


def test_a_full_disk_is_reported(replies: ReplyFiles, disk: Disk) -> None:
    disk.error = OSError(errno.ENOSPC, "full")
    disk.go.set()
    write(replies, "a")
    with pytest.raises(OSError, match="full"):
        replies.sync()
