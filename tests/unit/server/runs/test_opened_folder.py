"""How a run folder is opened: a run that has begun is never started again, and a lost journal is noticed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
from tests.unit.server.runs.test_run_folder import BOARDS, EXPERIMENT, opened, play_round, start

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.runs import run_folder
from fedquilt_server.runs.journal import Journal
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.runs.run_folder import inspect_folder


@pytest.mark.parametrize("tables", [False, True])
def test_a_journal_that_was_never_used_is_a_new_folder(tmp_path: Path, tables: bool) -> None:
    if tables:
        Journal(tmp_path / "journal.sqlite").close()
    else:
        (tmp_path / "journal.sqlite").touch()
    assert not inspect_folder(tmp_path).begun
    with opened(tmp_path, resume=False) as run:
        assert run.folder.epoch == 1


def test_a_run_that_begins_while_its_folder_is_awaited_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_after_another(folder: Path) -> IO[str]:
        monkeypatch.undo()
        with opened(folder, resume=False) as other:
            other.folder.begin()
        return lock_folder(folder)

    monkeypatch.setattr(run_folder, "lock_folder", lock_after_another)
    with pytest.raises(RunFolderError, match="already holds a run: resume it with --resume"):
        ActiveRun(EXPERIMENT, tmp_path, resume=False)


def test_a_resumed_run_writes_the_rounds_that_its_files_lack(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
        play_round(run, 1.0)
    (tmp_path / "result.json").unlink()
    with opened(tmp_path) as run:
        run.result_files.catch_up(BOARDS)
    assert len(read_result(tmp_path).rounds) == 1


def begin_and_play(folder: Path) -> None:
    with opened(folder) as run:
        run.folder.begin()
        start(run)
        play_round(run, 1.0)


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_lost_journal_does_not_start_the_run_over(lose: Callable[[Path], object], tmp_path: Path) -> None:
    begin_and_play(tmp_path)
    lose(tmp_path / "journal.sqlite")
    for attempt in (lambda: ActiveRun(EXPERIMENT, tmp_path, resume=True), lambda: inspect_folder(tmp_path)):
        with pytest.raises(RunFolderError, match=r"journal.sqlite is missing or empty, but .*begun.json shows"):
            attempt()


def test_a_journal_that_lost_a_round_or_belongs_to_another_run_is_named(tmp_path: Path) -> None:
    begin_and_play(tmp_path / "one")
    begin_and_play(tmp_path / "other")
    mark = (tmp_path / "one" / "begun.json").read_text()
    (tmp_path / "other" / "begun.json").write_text(mark)
    with pytest.raises(RunFolderError, match=r"journal.sqlite holds the run .* but .*begun.json names"):
        ActiveRun(EXPERIMENT, tmp_path / "other", resume=True)
    with closing(sqlite3.connect(tmp_path / "one" / "journal.sqlite")) as db, db:
        db.execute("DELETE FROM checkpoints WHERE round = 1")
    with pytest.raises(
        RunFolderError, match=r"lost what followed round 0: .*begun.json shows that round 1 was finished"
    ):
        ActiveRun(EXPERIMENT, tmp_path / "one", resume=True)


def test_a_damaged_mark_is_written_again_and_the_epoch_never_goes_back(tmp_path: Path) -> None:
    begin_and_play(tmp_path)
    mark = tmp_path / "begun.json"
    mark.write_bytes(mark.read_bytes()[:-9])
    with opened(tmp_path) as run:
        run.folder.begin()
        run.folder.journal.set_meta("epoch", "1")
    assert json.loads(mark.read_bytes())["epoch"] == 2
    with opened(tmp_path) as run:
        assert run.folder.epoch == 3


def test_a_process_killed_before_the_journal_existed_leaves_a_new_folder(tmp_path: Path) -> None:
    lock_folder(tmp_path).close()
    (tmp_path / "experiment.yaml").write_text("half")
    with opened(tmp_path, resume=False) as run:
        assert run.folder.epoch == 1


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        journal.set_meta("version", "99")
    with pytest.raises(RunFolderError, match="newer fedquilt"):
        ActiveRun(EXPERIMENT, tmp_path, resume=True)
