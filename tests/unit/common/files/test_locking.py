"""A folder has one process; the second one learns which one it is."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from socket import gethostname

import pytest

from fedquilt_common.errors import FolderInUseError
from fedquilt_common.files.locking import hold, is_held, lock_folder


def test_the_second_process_learns_who_holds_the_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        for _ in range(2):  # a refused process leaves the holder's number in place
            with pytest.raises(FolderInUseError) as error:
                lock_folder(tmp_path, wait=0)
            who = f"process {os.getpid()} on {gethostname()}"
            assert str(error.value) == f"{who} uses {tmp_path}: wait for it, stop it, or choose another folder"
    lock_folder(tmp_path, wait=0).close()


@pytest.mark.parametrize("content", ["", "\n", "rm -rf /\n", "12", "12 34 56"])
def test_a_holder_that_left_no_number(tmp_path: Path, content: str) -> None:
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(FolderInUseError, match=r"^another process uses"):
            lock_folder(tmp_path, wait=0)


def test_a_longer_number_of_an_earlier_holder_does_not_remain(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("99999999999999999\n")
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {gethostname()}\n"


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(FolderInUseError, match=r"cannot lock files \(No locks available\): choose a folder on a local"):
        lock_folder(tmp_path)


def test_a_file_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.touch()
    with path.open("rb") as file, path.open("rb") as another:
        assert not is_held(path)
        assert hold(file, path)
        assert hold(another, path)
        assert is_held(path)
    assert not is_held(path)


def test_a_file_that_was_moved_or_replaced_cannot_be_held(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.touch()
    with path.open("rb") as file:
        path.rename(tmp_path / "spare")
        assert not hold(file, path)
        path.touch()
        assert not hold(file, path)


def test_without_locks_every_file_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "model"
    path.touch()
    with path.open("rb") as file:
        assert hold(file, path)
    assert is_held(path)
