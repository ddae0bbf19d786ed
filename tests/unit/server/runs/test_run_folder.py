"""A run's folder: made once, taken up again by the same experiment only, its files whole at every moment."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.algorithm_api import State
from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.round.events import Checkpoint, Command, Event, Finish, Joined, Rejected, Replied
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.runs.reply_files import reply_name
from fedquilt_server.runs.run import ActiveRun, SavedRound
from fedquilt_server.runs.run_folder import claim_folder, inspect_folder
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.status.results import Ending, Result
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.tools.bench import bench_experiment

EXPERIMENT = bench_experiment(1, 2, 0.001, 2)
BOARDS = [BoardStatus(agent="pi", kind="pi-5", clients=[0, 1], memory_total=1 << 30, training={0: 0.5})]
CHECKPOINT = (2, 1000)
"""Bytes sent and received when a round closes in these tests."""


@contextmanager
def opened(folder: Path, experiment: Experiment = EXPERIMENT, *, resume: bool = True) -> Iterator[ActiveRun]:
    run = ActiveRun(experiment, folder, resume=resume)
    try:
        yield run
    finally:
        run.folder.release()


def record(run: ActiveRun, event: Event) -> int:
    """Journal an event and write it into the history; its number."""
    ((seq, _),) = run.append_all([event])
    run.history.take(seq, event)
    return seq


def answer(run: ActiveRun, client: int, value: float, at: float) -> tuple[int, list[Command]]:
    """A reply of client ``client`` full of ``value``, on disk and in the journal; what the machine says."""
    arrays = {name: np.full(x.shape, value, np.float32) for name, x in run.machine.state.arrays.items()}
    blob = write_arrays(run.folder.blobs.partial / "reply", arrays)
    blob.path.replace(run.folder.blobs.replies.path(reply_name(client, run.machine.round, 0, blob.digest)))
    event = Replied(at, "pi", client, run.machine.round, 0, blob.digest, 1.0)
    return record(run, event), run.machine.handle(event)


def play_round(run: ActiveRun, value: float) -> list[Command]:
    """Both clients answer; the checkpoint is kept; what comes after it."""
    at = 100.0 * run.machine.round
    answer(run, 0, value, at + 1)
    seq, commands = answer(run, 1, value + 1, at + 2)
    done = commands[-1]
    assert isinstance(done, Checkpoint)
    state, kept = save(run, seq, done)
    return run.machine.proceed(state, kept.at)


def save(run: ActiveRun, seq: int, done: Checkpoint) -> tuple[State, SavedRound]:
    written = run.write_state(done.state)
    saved = run.save_round(seq, done, written, {})
    run.result_files.note_round(BOARDS)
    run.checkpoints.clean({written.travelling.digest})
    return written.state, saved


def start(run: ActiveRun) -> None:
    event = Joined(100.0, "pi", 1, (0, 1))
    record(run, event)
    run.machine.handle(event)


def play(run: ActiveRun) -> None:
    start(run)
    play_round(run, 1.0)
    assert isinstance(play_round(run, 5.0)[0], Finish)
    run.finish(BOARDS)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert (inspect_folder(folder).begun, inspect_folder(folder).experiment, inspect_folder(folder).finished) == (
        False,
        None,
        False,
    )
    with opened(folder, resume=False) as run:
        assert (run.folder.epoch, run.machine.done, run.folder.finished, run.folder.closed) == (1, 0, False, False)
        assert run.folder.run.startswith("bench-round-")
        assert (folder / "experiment.yaml").read_text() == dump_experiment(EXPERIMENT)
        assert run.restore() == []
        assert list(run.events_since_checkpoint()) == []
    assert (inspect_folder(folder).begun, inspect_folder(folder).experiment) == (False, dump_experiment(EXPERIMENT))


@pytest.mark.parametrize("name", ["experiment.yaml", "notes.txt"])
def test_a_folder_with_other_files_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("# my own\n")
    (tmp_path / ".hidden").touch()
    with pytest.raises(RunFolderError, match=rf"holds other files and no run, such as {name}: choose an --out"):
        ActiveRun(EXPERIMENT, tmp_path, resume=False)
    with pytest.raises(RunFolderError, match="holds other files and no run"):
        make_plan(EXPERIMENT, tmp_path)
    with pytest.raises(RunFolderError, match="holds other files and no run"):
        claim_folder(tmp_path)
    assert (tmp_path / name).read_text() == "# my own\n"


def test_a_claimed_folder_is_that_of_a_run(tmp_path: Path) -> None:
    """A sweep writes the experiment there before it starts the run."""
    claim_folder(tmp_path / "new")
    (tmp_path / "new" / "experiment.yaml").write_text(dump_experiment(EXPERIMENT))
    with opened(tmp_path / "new", resume=False) as run:
        assert run.folder.epoch == 1


def test_a_folder_with_a_run_is_taken_up_only_when_asked(tmp_path: Path) -> None:
    with opened(tmp_path, resume=False):
        pass  # no broker let it in
    with opened(tmp_path, resume=False) as run:
        run.folder.begin()
        identity, epoch, started = run.folder.run, run.folder.epoch, run.folder.started_at
    with pytest.raises(RunFolderError, match="already holds a run: resume it with --resume"):
        ActiveRun(EXPERIMENT, tmp_path, resume=False)
    with opened(tmp_path) as run:
        assert (run.folder.run, run.folder.epoch, run.folder.started_at) == (identity, epoch + 1, started)


def test_a_journal_of_before_counts_as_begun(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert not inspect_folder(tmp_path).begun
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'fresh'")
    assert inspect_folder(tmp_path).begun
    assert run.folder.run


def test_another_experiment_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    other = EXPERIMENT.model_copy(update={"seed": 9})
    with pytest.raises(
        RunFolderError, match=r"holds a run of another experiment \(seed was \d+ and is 9\): choose .* to resume"
    ):
        ActiveRun(other, tmp_path, resume=True)
    assert (tmp_path / "experiment.yaml").read_text() == dump_experiment(EXPERIMENT)
    assert inspect_folder(tmp_path).experiment == dump_experiment(EXPERIMENT)


def test_a_round_goes_on_where_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
        play_round(run, 1.0)
        answer(run, 0, 5.0, 201.0)
        record(run, Rejected(202.0, "pi", 1, 2, "no"))
    with opened(tmp_path) as run:
        assert [type(c).__name__ for c in run.restore()] == ["Send"]
        for _, event in run.events_since_checkpoint():
            run.machine.handle(event)
        assert run.machine.round == 2
        assert run.machine.exchange is not None
        assert set(run.machine.exchange.replies) == {0}
        seq, commands = answer(run, 1, 6.0, 203.0)
        done = commands[-1]
        assert isinstance(done, Checkpoint)
        state, kept = save(run, seq, done)
        assert {float(x.mean()) for x in state.arrays.values()} == {5.5}
        assert (kept.row.clients, kept.row.rejected, kept.row.late) == (2, 1, 0)
        assert [r.round for r in run.folder.journal.results()] == [1, 2]


def test_a_checkpoint_lets_go_of_replies_and_old_states(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
        play_round(run, 1.0)
        (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
        assert "global_sha256" not in run.result().final
        run.end(Ending(status="stopped"), BOARDS)
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == run.result().final["global_sha256"]


def test_a_missing_reply_is_named_when_the_run_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
        answer(run, 0, 1.0, 101.0)
        (gone,) = run.folder.blobs.replies.folder.iterdir()
        gone.unlink()
    with opened(tmp_path) as run:
        for _, event in run.events_since_checkpoint():
            run.machine.handle(event)
        with pytest.raises(RunFolderError, match=f"{gone.name}, the reply of client 0 to round 1, exchange 0, cannot"):
            answer(run, 1, 1.0, 102.0)


def test_a_finished_run_stays_finished_and_keeps_its_files(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        play(run)
        assert run.folder.finished
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*") if "sqlite" not in path.name}
    assert inspect_folder(tmp_path).finished
    with opened(tmp_path) as run:
        assert run.folder.finished
        assert not run.folder.closed
        assert run.machine.finished
        assert [type(c) for c in run.restore()] == [Finish]
        run.folder.close()
        assert run.folder.closed
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.*") if "sqlite" not in path.name}


def test_the_results_say_the_same_in_every_file(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.watch_socket(lambda: CHECKPOINT)
        play(run)
    result = Result.model_validate_json((tmp_path / "result.json").read_text())
    model = FileArrays(tmp_path / "global.safetensors")
    assert {float(model[name].mean()) for name in model} == {5.5}
    final = result.final
    assert (final["rounds"], final["bytes_down"], final["bytes_up"]) == (2, *CHECKPOINT)
    assert final["model_bytes"] == (tmp_path / "global.safetensors").stat().st_size
    assert (result.algorithm, result.dataset, result.seed, result.name) == ("echo", "digits", 0, "bench-round")
    table = rows(tmp_path / "rounds.csv")
    for row, line in zip(result.rounds, table, strict=True):
        assert line == {k: str(v) for k, v in row.model_dump().items() if v not in (None, {})}
    first, second = result.rounds
    assert (first.round, first.clients, first.asked, first.bytes_down, second.bytes_down) == (1, 2, 2, 2, 0)
    (board,) = rows(tmp_path / "boards.csv")
    assert (board["agent"], board["clients"], board["memory_total"], board["power"]) == ("pi", "2", str(1 << 30), "")


def test_traffic_goes_on_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.watch_socket(lambda: (100, 10))
        start(run)
        play_round(run, 1.0)
    with opened(tmp_path) as run:
        assert run.traffic.read() == Traffic(100, 10)
        run.watch_socket(lambda: (50, 5))
        assert run.traffic.read() == Traffic(150, 15)
        run.restore()
        play_round(run, 2.0)
        assert [(r.bytes_down, r.bytes_up) for r in run.folder.journal.results()] == [(100, 10), (50, 5)]


def test_a_finished_run_tells_its_note_without_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workbench, "note", "test persons are others than the official ones")
    with opened(tmp_path) as run:
        play(run)
    monkeypatch.undo()
    assert "others than the official" in Result.model_validate_json((tmp_path / "result.json").read_text()).note
    with opened(tmp_path) as run:
        assert run.result().note == "test persons are others than the official ones"


@pytest.mark.parametrize("name", ["result.json", "rounds.csv", "boards.csv", "global.safetensors"])
def test_a_crash_while_a_file_is_written_leaves_the_old_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as run:
        play(run)
        (tmp_path / name).write_text("old")
        replaced: list[str] = []
        monkeypatch.setattr(Path, "replace", dies_at(name, replaced))
        monkeypatch.setattr(os, "replace", dies_at(name, replaced))
        with pytest.raises(OSError, match="power cut"):
            run.finish(BOARDS)
        monkeypatch.undo()
        assert (tmp_path / name).read_text() == "old"
        run.finish(BOARDS)
        assert (tmp_path / name).read_bytes() != b"old"
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")]


def dies_at(name: str, replaced: list[str]) -> Callable[[Path, Path], Path]:
    rename = os.rename

    def replace(source: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise OSError("power cut")
        replaced.append(Path(target).name)
        rename(source, target)
        return Path(target)

    return replace


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"\x00garbage" * 1000)
    for attempt in (lambda: inspect_folder(tmp_path), lambda: ActiveRun(EXPERIMENT, tmp_path, resume=True)):
        with pytest.raises(RunFolderError, match="is not a fedquilt journal"):
            attempt()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as db:
        db.execute("UPDATE checkpoints SET arrays = ?", ("ab" * 32,))
        db.commit()
    with pytest.raises(RunFolderError, match=r"journal.sqlite is damaged.*round 0 in its table checkpoints differs"):
        ActiveRun(EXPERIMENT, tmp_path, resume=True)


def test_the_first_state_is_made_again_from_the_seed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as run:
        path = run.folder.blobs.path(run.checkpoints.last.arrays)
    content = path.read_bytes()
    for damage in (lambda: path.write_bytes(content[:-1]), path.unlink):
        damage()
        with opened(tmp_path):
            assert path.read_bytes() == content
    assert f"{path} is damaged" in caplog.text


def test_a_later_state_is_named_with_a_remedy(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        start(run)
        play_round(run, 1.0)
        path = run.folder.blobs.path(run.checkpoints.last.arrays)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=f"{path} is damaged.* Restore the file from a backup"):
        ActiveRun(EXPERIMENT, tmp_path, resume=True)


def test_result_json_is_json_for_everyone(tmp_path: Path) -> None:
    """No NaN, which other languages cannot read."""
    with opened(tmp_path) as run:
        play(run)

    def refuse(text: str) -> None:
        raise AssertionError(text)

    json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)


def test_replies_that_were_journaled_with_the_closing_one_stay(tmp_path: Path) -> None:
    """They count in the next round if their tasks go on."""
    with opened(tmp_path) as run:
        start(run)
        answer(run, 0, 1.0, 101)
        seq, (*_, done) = answer(run, 1, 2.0, 102)
        late = write_arrays(run.folder.blobs.partial / "reply", {"w": np.ones(3, np.float32)})
        event = Replied(103, "pi", 0, 1, 1, late.digest, 1.0)
        late.path.replace(run.folder.blobs.replies.path(reply_name(0, 1, 1, late.digest)))
        record(run, event)
        assert isinstance(done, Checkpoint)
        save(run, seq, done)
        run.folder.blobs.verify(event)
        assert len(list(run.folder.blobs.replies.folder.iterdir())) == 1


@pytest.mark.parametrize("mixed", [True, False])
def test_a_budget_ends_a_round_without_scores_and_only_a_coordinator_that_evaluates_adds_some(
    tmp_path: Path, mixed: bool
) -> None:
    data = {"set": "digits", "clients": 2, **({"holdout": 0.25, "mixed": True} if mixed else {})}
    limits = {"rounds": 4, "evaluate_every": 2, "budget": {"hours": 1e-9}}
    raw = {"name": "x", "data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}, **limits}
    with opened(tmp_path, Experiment.model_validate(raw), resume=False) as run:
        start(run)
        assert isinstance(play_round(run, 0.0)[0], Finish)
    with opened(tmp_path, Experiment.model_validate(raw)) as run:
        (row,) = run.folder.journal.results()
        assert (row.accuracy is None) == mixed
