"""A recorded run is repeated without boards; every difference is found and named."""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support import warm
from tests.unit.server.replay.conftest import ROUNDS, Kit, overwrite

from fedquilt_common.errors import FolderInUseError, RunFolderError
from fedquilt_common.files.digests import digest_file, kind_of
from fedquilt_server.replay import engine
from fedquilt_server.replay.replay import ReplaySettings
from fedquilt_server.replay.replies import ReplyMaker
from fedquilt_server.replay.report import ReplayedRound
from fedquilt_server.replay.training import ReplayStoppedError
from fedquilt_server.replay.work_folder import ReplayOptions, ReplayProgress, StoredMemoryFile, write_progress
from fedquilt_server.round.events import Replied
from fedquilt_server.runs.journal import Journal, Traffic

RETRAIN = ReplaySettings(workers=2, options=ReplayOptions(retrain=True))


def counts(kit: Kit, settings: ReplaySettings | None = None) -> list[tuple[int, int, int]]:
    """Replay; returns the replies of each round that are equal, trained and kept."""
    report = kit.replay(settings)
    assert report.difference is None
    assert report.model_sha256 == report.recorded_sha256 == digest_file(kit.run / "global.safetensors", "sha256")
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
    last = max(kit.replies, key=lambda place: (place.path.name, place.start))
    overwrite(last, -128, b"lost ")  # its name: the reply cannot be found, nor could one behind it
    assert counts(kit) == [(3, 1, 2)] * ROUNDS


def test_a_run_of_an_earlier_version_goes_on_and_is_replayed_with_its_digests(old_kit: Kit) -> None:
    with closing(Journal(old_kit.run / "journal.sqlite")) as journal:
        assert {kind_of(one.arrays) for one in journal.checkpoints()} == {"sha256"}
    assert counts(old_kit, RETRAIN) == [(2, 2, 0)] * ROUNDS


def test_clients_with_other_samples_are_refused(kit: Kit) -> None:
    """Such as those of another copy of the data set; a run without any record is replayed."""
    with closing(Journal(kit.run / "journal.sqlite")) as journal:
        journal.set_meta("partition", "a" * 64)
    with pytest.raises(RunFolderError, match="its clients had other samples when the run began"):
        kit.replay()


def test_the_run_folder_stays_as_it_is(kit: Kit) -> None:
    def contents() -> dict[Path, str]:
        files = [path for path in kit.run.rglob("*") if path.is_file() and "journal.sqlite-" not in path.name]
        return {path: digest_file(path, "sha256") for path in files}

    before = contents()
    kit.replay()
    assert contents() == before


def test_a_damaged_reply_is_named(kit: Kit) -> None:
    overwrite(kit.replies[0], (kit.replies[0].size or 0) - 1, b"x")
    report = kit.replay()
    assert report.difference is not None
    assert report.difference.startswith("round 1, exchange 0, reply of client 0 (")
    assert kit.replies[0].path.name in report.difference
    assert [row.replies - row.equal for row in report.rounds] == [1]
    assert report.end == ""


def test_a_damaged_journal_is_named_and_not_its_copy(kit: Kit) -> None:
    path = kit.run / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET digest = 'x' WHERE seq = 2")
    with pytest.raises(RunFolderError, match=f"^{re.escape(str(path))} is damaged"):
        kit.replay()


def test_an_algorithm_with_other_arrays_after_the_last_round_is_named(kit: Kit) -> None:
    """Such as the moments of FedOpt, or the account of a privacy."""
    with closing(Journal(kit.run / "journal.sqlite")) as journal:
        last = journal.checkpoints()[-1]
        journal.save(dataclasses.replace(last, extra="f" * len(last.arrays)))
    report = kit.replay()
    assert report.difference == f"the state after round {ROUNDS}: its extra have the digest  instead of {'f' * 12}"
    assert [row.state_equal for row in report.rounds] == [True] * (ROUNDS - 1) + [False]


def test_another_algorithm_gives_other_replies(kit: Kit) -> None:
    journal = Journal(kit.run / "journal.sqlite")
    text = journal.meta("experiment") or ""
    assert "name: echo" in text
    journal.set_meta("experiment", text.replace("name: echo", "name: echo\n  step: 0.25"))
    journal.close()
    report = kit.replay(RETRAIN)
    assert report.difference is not None
    assert "its digest is" in report.difference
    assert not report.identical


def test_a_killed_run_is_replayed_as_far_as_its_journal_goes(kit: Kit) -> None:
    first = Journal(kit.run / "journal.sqlite")
    closes = first.checkpoints()[1].seq
    first.close()
    cut(kit.run / "journal.sqlite", closes + 2)
    report = kit.replay(RETRAIN)  # a running run may finish after its journal was copied
    assert (report.difference, report.recorded_sha256) == (None, None)
    assert report.end == f"The journal ends in round 2 of {ROUNDS}, exchange 0, after 2 of 3 replies."
    assert [(row.equal, row.state_equal) for row in report.rounds] == [(3, True), (2, None)]


def test_a_journal_that_ends_before_a_checkpoint_does_not_show_that_the_state_is_equal(kit: Kit) -> None:
    with closing(Journal(kit.run / "journal.sqlite")) as journal:
        closes = journal.checkpoints()[2].seq
    cut(kit.run / "journal.sqlite", closes)
    with closing(sqlite3.connect(kit.run / "journal.sqlite")) as db, db:
        db.execute("DELETE FROM checkpoints WHERE seq = ?", (closes,))
    report = kit.replay()
    assert report.end == f"The journal ends after 2 of {ROUNDS} rounds. It does not have the state after round 2."
    assert [row.state_equal for row in report.rounds] == [True, None]


def test_replies_in_half_precision_give_the_same_model(half_kit: Kit) -> None:
    assert [(row.replies, row.equal) for row in half_kit.replay().rounds] == [(2, 2)] * ROUNDS


@pytest.mark.parametrize(
    ("change", "words"),
    [({"weight": 7.0}, "its weight is 1 instead of 7"), ({"metrics": {"loss": 0.5}}, "its metric 'loss' is None")],
)
def test_a_kept_reply_has_the_recorded_weight_and_metrics(kit: Kit, change: dict[str, Any], words: str) -> None:
    rewrite_replies(kit.run / "journal.sqlite", change)
    report = kit.replay()
    assert report.difference is not None
    assert words in report.difference


def rewrite_replies(path: Path, change: dict[str, Any]) -> None:
    """Change all replies of a journal, with valid checksums."""
    with closing(Journal(path)) as old, closing(Journal(path.with_name("new"))) as new:
        for key in ("run", "experiment"):
            new.set_meta(key, old.meta(key) or "")
        for _, event in old.events_after(0):
            new.append(dataclasses.replace(event, **change) if isinstance(event, Replied) else event, Traffic())
        for checkpoint in old.checkpoints():
            new.save(checkpoint)
    path.with_name("new").replace(path)


def test_a_kept_reply_that_is_deleted_before_it_is_read_is_named(kit: Kit) -> None:
    def delete(round: int) -> None:
        (kit.run / "blobs" / "replies" / f"segment-{round}").unlink()

    with pytest.raises(RunFolderError, match="was deleted while the run went on: run the same command again"):
        kit.replay(on_round=lambda row: delete(row.round + 1))


def test_a_kept_reply_that_is_deleted_before_it_is_aggregated_is_named(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = ReplyMaker.accept

    def accept_and_delete(maker: ReplyMaker, *arguments: Any) -> Any:
        reply = accept(maker, *arguments)
        reply.place.path.unlink()
        return reply

    monkeypatch.setattr(ReplyMaker, "accept", accept_and_delete)
    with pytest.raises(RunFolderError, match="was deleted while the run went on"):
        kit.replay()


def test_a_replay_continues_with_the_same_options_only(kit: Kit) -> None:
    kit.replay()
    with pytest.raises(RunFolderError, match=r"a replay with --threads 1, not with --retrain --threads 1.*the same"):
        kit.replay(RETRAIN)


def test_a_replay_that_is_killed_before_it_stores_a_round_keeps_the_private_memory(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReplayStoppedError):
        kit.replay(ReplaySettings(should_stop=lambda: '"rounds":[]' not in (kit.work / "replay.json").read_text()))
    memory = kit.work / "memories" / "7-1.0-fingerprint"
    memory.write_bytes(b"memory")
    progress = ReplayProgress.model_validate_json((kit.work / "replay.json").read_bytes())
    stored = StoredMemoryFile(client=7, after=(1, 0), file=memory.name, digest=None)
    write_progress(kit.work, progress.model_copy(update={"memories": [stored]}))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "write_progress", die)
    with pytest.raises(KeyboardInterrupt):
        kit.replay()
    assert memory.exists()
    monkeypatch.undo()
    assert kit.replay().identical
    assert not memory.exists()


def test_a_stopped_replay_continues(kit: Kit) -> None:
    def finished() -> list[object]:
        return list(json.loads((kit.work / "replay.json").read_text())["rounds"])

    shown: list[ReplayedRound] = []
    with pytest.raises(ReplayStoppedError):
        kit.replay(ReplaySettings(should_stop=lambda: bool(finished())), shown.append)
    done = finished()
    assert [row.round for row in shown] == [1]
    report = kit.replay()
    assert report.identical
    assert len(done) == 1
    assert len(report.rounds) == ROUNDS
    assert [row.model_dump(mode="json") for row in report.rounds][:1] == done


@pytest.mark.parametrize("content", ["journal.sqlite", "replay.json"])
def test_a_folder_with_something_else_is_no_work_folder(kit: Kit, content: str) -> None:
    kit.work.mkdir()
    other = {"run": "other", "options": {}, "arrays": "", "extra": "", "rounds": []}
    (kit.work / content).write_text(json.dumps(other))
    with pytest.raises(RunFolderError, match="choose another --out"):
        kit.replay()
    assert json.loads((kit.work / content).read_text()) == other


def test_a_run_is_not_replayed_in_its_own_folder_nor_without_a_journal(kit: Kit) -> None:
    with pytest.raises(RunFolderError, match="is the run itself"):
        Kit(kit.run, kit.run).replay()
    (loop := kit.work.parent / "loop").symlink_to(loop)
    with pytest.raises(FolderInUseError, match="choose another folder"):
        Kit(kit.run, loop).replay()
    with pytest.raises(RunFolderError, match=r"journal\.sqlite is missing, and a replay needs it: name a run folder"):
        Kit(kit.work, kit.run / "work").replay()


def test_a_run_of_another_version_is_refused_with_what_to_do(kit: Kit) -> None:
    with closing(Journal(kit.run / "journal.sqlite")) as journal:
        text = journal.meta("experiment") or ""
        journal.set_meta("experiment", re.sub(r"(?m)^rounds: \d+$", "rounds: 2000000", text))
    with pytest.raises(RunFolderError, match=r"must be at most 1,000,000.*use the version of the run"):
        kit.replay()


def test_the_command_prints_a_report_and_exits_with_7_if_the_run_differs(kit: Kit, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedquilt_common.cli", "replay", str(kit.run), "--json"]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]  # without standard error
    printed = subprocess.run(closed, stdout=subprocess.PIPE, timeout=60, check=True).stdout
    assert json.loads(printed)["difference"] is None
    overwrite(kit.replies[0], 0, b"x")
    done = warm.fedquilt("replay", str(kit.run), where=tmp_path)
    assert done.returncode == 7
    assert "First difference: round 1, exchange 0, reply of client 0" in done.stdout
