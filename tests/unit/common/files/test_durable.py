"""Text files are replaced whole, and nothing else stays behind."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedquilt_common.files import durable
from fedquilt_common.files.durable import delete_with_draft, write_atomically, write_durably


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may be longer than eight bytes, as on a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("write", [write_atomically, write_durably])
@pytest.mark.usefixtures("small_files")
def test_a_file_that_does_not_fit_leaves_the_old_one_alone(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(OSError, match="File too large"):
        write(path, "longer than eight bytes")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("state.json", "old")]


@pytest.mark.parametrize(("place", "step"), [(durable, "sync"), (Path, "replace")])
def test_an_error_after_the_text_is_written_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, step: str
) -> None:
    """Some file systems find only at the sync that there is no room."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "state.json", "{}")
    assert not list(tmp_path.iterdir())


def test_a_draft_of_a_killed_process_is_deleted_with_its_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "stop.json", "{}")
    (tmp_path / ".stop.json.new").write_text("{")
    (tmp_path / "other.json").touch()
    delete_with_draft(tmp_path / "stop.json")
    delete_with_draft(tmp_path / "stop.json")
    assert [file.name for file in tmp_path.iterdir()] == ["other.json"]
