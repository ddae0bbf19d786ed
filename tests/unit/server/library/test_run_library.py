"""The runs of a folder: identifiers that are safe everywhere, and no second reading of files that did not change."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.support.recorded_runs import write_run

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.library import run_library
from fedquilt_server.library.recorded_run import RecordedRun, read_run
from fedquilt_server.library.run_library import LONGEST_ID, RunLibrary, run_id

HARD_NAMES = ("two words", "<b>x</b>".replace("/", "|"), "a~b", "100 %", "..hidden", "ä", "x" * 200, "a&b=c?d#e")


def search_again(library: RunLibrary) -> None:
    """Let the next call look at the folder again at once."""
    library._search_at = 0.0


def test_an_identifier_is_the_path_where_that_is_safe(tmp_path: Path) -> None:
    for name in ("digits", "sweep/fedavg-seed=1", "sweep/a.b_c+d,e"):
        assert run_id(tmp_path / name, tmp_path) == name.replace("/", "~")


@pytest.mark.parametrize("name", HARD_NAMES)
def test_an_identifier_needs_no_escapes(name: str, tmp_path: Path) -> None:
    found = run_id(tmp_path / "sweep" / name, tmp_path)
    assert re.fullmatch(r"[A-Za-z0-9._=,+~-]+", found)
    assert len(found) <= LONGEST_ID
    assert found not in (".", "..")


def test_different_folders_have_different_identifiers(tmp_path: Path) -> None:
    names = (*HARD_NAMES, "a/b", "a/b~c", "a~b/c", "a b", "a  b", os.fsdecode(b"\xff"), os.fsdecode(b"\xfe"))
    assert len({run_id(tmp_path / name, tmp_path) for name in names}) == len(names)


def test_a_run_folder_itself_is_a_library_of_one(tmp_path: Path) -> None:
    write_run(tmp_path / "digits")
    (one,) = RunLibrary(tmp_path / "digits").list()
    assert (one.id, one.parents, one.leaf) == ("digits", "", "digits")


def test_runs_of_the_same_name_are_two_runs(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_run(tmp_path / place / "digits", seed=ord(place))
    runs = RunLibrary(tmp_path).list()
    assert [(run.id, run.row.name, run.parents, run.leaf, run.row.seed) for run in runs] == [
        ("a~digits", "digits", "a/", "digits", 97),
        ("b~digits", "digits", "b/", "digits", 98),
    ]


def test_only_runs_of_the_list_are_found(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "secret")
    library_folder = tmp_path / "runs"
    write_run(library_folder / "digits")
    (library_folder / "link").symlink_to(outside)
    library = RunLibrary(library_folder)
    assert [run.id for run in library.list()] == ["digits"]
    for id in ("link", "..", ".", "", "../outside/secret", "..~outside~secret", str(outside), "digits/", "nothing"):
        assert library.find(id) is None, id


def test_a_run_is_read_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write_run(tmp_path / f"run-{number}", [0.5])
    library = RunLibrary(tmp_path)
    read: list[str] = []

    def count(folder: Path) -> RecordedRun:
        read.append(folder.name)
        return read_run(folder)

    monkeypatch.setattr(run_library, "read_run", count)
    monkeypatch.setattr(run_library, "LEAST_SECONDS", 1e6)
    library.list()
    assert len(read) == 5
    write_run(tmp_path / "run-3", [0.5, 0.75])
    write_run(tmp_path / "run-9")
    library.list()
    assert len(read) == 5, "the folder is searched once in LEAST_SECONDS at most"
    search_again(library)
    assert [(run.id, run.row.final) for run in library.list()][3] == ("run-3", 0.75)
    assert read[5:] == ["run-3", "run-9"]


def test_a_run_that_ends_is_seen_by_its_lock(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "digits", status="running", exit_code=None)
    library = RunLibrary(tmp_path)
    with lock_folder(folder):
        assert library.list()[0].row.status == "running"
    search_again(library)
    assert library.list()[0].row.status == "interrupted"


def test_a_run_that_is_gone_is_not_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "digits")
    library = RunLibrary(tmp_path)
    assert library.find("digits") is not None
    (folder / "result.json").unlink()
    search_again(library)
    assert library.find("digits") is None
    tmp_path.joinpath("digits").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    tmp_path.rmdir()
    search_again(library)
    with pytest.raises(RunFolderError, match="there is no such folder"):
        library.list()
