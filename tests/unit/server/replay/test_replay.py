"""A recorded run is repeated without boards; every difference is found and named."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.server.replay.conftest import ROUNDS, Kit

from fedquilt_common.errors import RunFolderError
from fedquilt_common.wire.chunks import digest_file
from fedquilt_server.replay.engine import ReplayOptions
from fedquilt_server.replay.replay import ReplaySettings
from fedquilt_server.replay.training import ReplayStoppedError
from fedquilt_server.runs.journal import Journal

RETRAIN = ReplaySettings(workers=2, options=ReplayOptions(retrain=True))


def counts(kit: Kit, settings: ReplaySettings | None = None) -> list[tuple[int, int, int]]:
    """Replay; returns the replies of each round that are equal, trained and kept."""
    report = kit.replay(settings)
    assert report.difference is None
    assert report.model_sha256 == report.recorded_sha256 == digest_file(kit.run / "global.safetensors")
    assert [row.state_equal for row in report.rounds] == [True] * ROUNDS
    return [(row.equal, row.trained, row.kept) for row in report.rounds]


def cut(journal: Path, events: int) -> None:
    """Leave the first events of a journal, as if its coordinator had been killed then."""
    with closing(sqlite3.connect(journal)) as db, db:
        db.execute("DELETE FROM events WHERE seq > ?", (events,))
        db.execute("DELETE FROM checkpoints WHERE seq > ?", (events,))
        db.execute("DELETE FROM meta WHERE key IN ('finished', 'closed', 'traffic')")


def test_kept_replies_give_the_same_model(kit: Kit) -> None:
    assert counts(kit) == [(3, 0, 3)] * ROUNDS


def test_replies_that_are_trained_again_are_equal_and_give_the_same_model(kit: Kit) -> None:
    assert counts(kit, RETRAIN) == [(3, 3, 0)] * ROUNDS


def test_only_clients_whose_replies_are_not_all_kept_are_trained_again(kit: Kit) -> None:
    kit.replies[-1].unlink()
    assert counts(kit) == [(3, 1, 2)] * ROUNDS


def test_the_run_folder_stays_as_it_is(kit: Kit) -> None:
    def contents() -> dict[Path, str]:
        files = [path for path in kit.run.rglob("*") if path.is_file() and "journal.sqlite-" not in path.name]
        return {path: digest_file(path) for path in files}

    before = contents()
    kit.replay()
    assert contents() == before


def test_a_damaged_reply_is_named(kit: Kit) -> None:
    kit.replies[0].write_bytes(kit.replies[0].read_bytes()[:-1] + b"x")
    report = kit.replay()
    assert report.difference is not None
    assert report.difference.startswith("round 1, exchange 0, reply of client 0 (")
    assert kit.replies[0].name in report.difference
    assert [row.replies - row.equal for row in report.rounds] == [1]


def test_another_algorithm_gives_other_replies(kit: Kit) -> None:
    journal = Journal(kit.run / "journal.sqlite")
    text = journal.meta("experiment") or ""
    assert "name: echo" in text
    journal.set_meta("experiment", text.replace("name: echo", "name: echo\n  step: 0.25"))
    journal.close()
    report = kit.replay(RETRAIN)
    assert report.difference is not None
    assert "its SHA-256 is" in report.difference
    assert not report.identical


def test_a_killed_run_is_replayed_as_far_as_its_journal_goes(kit: Kit) -> None:
    first = Journal(kit.run / "journal.sqlite")
    closes = first.checkpoints()[1].seq
    first.close()
    cut(kit.run / "journal.sqlite", closes + 2)
    (kit.run / "global.safetensors").unlink()
    report = kit.replay(RETRAIN)
    assert report.difference is None
    assert report.end == f"The journal ends in round 2 of {ROUNDS}, exchange 0, after 2 of 3 replies."
    assert [(row.equal, row.state_equal) for row in report.rounds] == [(3, True), (2, None)]


def test_a_stopped_replay_continues(kit: Kit) -> None:
    def finished() -> list[object]:
        return list(json.loads((kit.work / "replay.json").read_text())["rounds"])

    with pytest.raises(ReplayStoppedError):
        kit.replay(ReplaySettings(should_stop=lambda: bool(finished())))
    done = finished()
    report = kit.replay()
    assert report.identical
    assert len(done) == 1
    assert len(report.rounds) == ROUNDS
    assert [row.model_dump(mode="json") for row in report.rounds][:1] == done


@pytest.mark.parametrize("content", ["journal.sqlite", "replay.json"])
def test_a_folder_with_something_else_is_no_work_folder(kit: Kit, content: str) -> None:
    kit.work.mkdir()
    other = {"run": "other", "arrays": "", "extra": "", "rounds": []}
    (kit.work / content).write_text(json.dumps(other))
    with pytest.raises(RunFolderError, match="choose another --out"):
        kit.replay()
    assert json.loads((kit.work / content).read_text()) == other


def test_a_run_is_not_replayed_in_its_own_folder_nor_without_a_journal(kit: Kit) -> None:
    with pytest.raises(RunFolderError, match="is the run itself"):
        Kit(kit.run, kit.run).replay()
    with pytest.raises(RunFolderError, match="holds no run that has started"):
        Kit(kit.work, kit.run / "work").replay()


def test_the_command_prints_a_report_and_exits_with_7_if_the_run_differs(kit: Kit) -> None:
    command = [sys.executable, "-m", "fedquilt_common.cli", "replay", str(kit.run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["difference"] is None
    kit.replies[0].write_bytes(b"")
    done = subprocess.run(command[:-1], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert "First difference: round 1, exchange 0, reply of client 0" in done.stdout
