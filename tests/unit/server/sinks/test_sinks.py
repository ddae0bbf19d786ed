"""TensorBoard and MLflow receive each round once: live, after failures and after restarts. Both packages are real."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.runs import EXPERIMENTS

from fedquilt_common import cli
from fedquilt_server.sinks.feeder import SinkFeeder
from fedquilt_server.sinks.sink import Sink, board_scalars, round_scalars
from fedquilt_server.status.results import RoundResult, RunStatus
from fedquilt_server.status.snapshot import BoardStatus, Snapshot

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
BOARDS = [BoardStatus(agent="pi-1", temperature=51.5, power=4.0), BoardStatus(agent="pi-2")]


def rows(count: int) -> list[RoundResult]:
    return [
        RoundResult.model_validate({**ZEROS, "round": n, "accuracy": n / 10, "seconds": 2.0, "scores": {"f1": 0.5}})
        for n in range(1, count + 1)
    ]


def snapshot(rounds: int, **changes: Any) -> Snapshot:
    known = {"run": "demo-1", "phase": "training", "history": rows(rounds), "boards": BOARDS}
    return Snapshot.model_validate({**known, **changes})


def test_only_numbers_are_sent() -> None:
    row = rows(1)[0].model_copy(update={"loss": float("nan"), "personal_accuracy": float("inf")})
    found = round_scalars(row)
    assert (found["score/accuracy"], found["score/f1"], found["seconds/round"]) == (0.1, 0.5, 2.0)
    assert not {"loss", "score/personal_accuracy", "score/r2"} & set(found)
    assert board_scalars(BOARDS) == {"board pi-1/celsius": 51.5, "board pi-1/watts": 4.0}


# --- a sink that fails ----------------------------------------------------------------------------------------


class Memory:
    """A sink that keeps its rounds, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.rounds: list[int] = []
        self.statuses: list[RunStatus] = []
        self.failures = failures
        self.opened = 0

    def open_sink(self, run: str) -> Sink:
        assert run == "demo-1"
        self.opened += 1
        return self

    @property
    def last_round(self) -> int:
        return max(self.rounds, default=0)

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        if self.failures and round == 2:
            self.failures -= 1
            raise OSError("No space left on device\nmore")
        self.rounds.append(round)

    def end(self, status: RunStatus) -> None:
        self.statuses.append(status)


def wait_for(done: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_failure_is_reported_once_and_nothing_is_lost_or_written_twice(said: list[str]) -> None:
    sink = Memory(failures=3)
    feeder = SinkFeeder("Memory", sink.open_sink, said.append, retry_seconds=0.01)
    feeder.start()
    feeder.show(snapshot(3))
    wait_for(lambda: sink.rounds == [1, 2, 3])
    feeder.show(snapshot(4))
    feeder.show(snapshot(5, phase="finished", boards=[]))
    wait_for(lambda: sink.statuses)
    feeder.close()
    assert (sink.rounds, sink.statuses, sink.opened) == ([1, 2, 3, 4, 5], ["finished"], 4)
    assert said == [
        "Memory does not take the results: No space left on device. The run goes on",
        "Memory takes the results again, from the first missing round on",
    ]


def test_a_sink_that_never_works_is_reported_at_the_end(said: list[str]) -> None:
    sink = Memory(failures=1000)
    feeder = SinkFeeder("Memory", sink.open_sink, said.append, retry_seconds=1e6)
    feeder.start()
    feeder.show(snapshot(3))
    wait_for(lambda: said)
    feeder.close()
    assert sink.rounds == [1]
    assert said[-1].startswith("Memory has not received the last 2 rounds. result.json in the run folder has them")


def test_what_is_left_is_written_at_the_end(said: list[str]) -> None:
    sink = Memory()
    feeder = SinkFeeder("Memory", sink.open_sink, said.append)
    feeder.show(Snapshot())  # the run has not begun
    feeder.show(snapshot(2, phase="stopped"))
    feeder.start()
    feeder.close()
    assert (sink.rounds, sink.statuses, said) == ([1, 2], ["stopped"], [])


def test_a_run_without_a_name_opens_nothing(said: list[str]) -> None:
    sink = Memory()
    feeder = SinkFeeder("Memory", sink.open_sink, said.append)
    feeder.start()
    feeder.show(Snapshot())
    feeder.close()
    assert (sink.opened, said) == (0, [])
    assert not [thread for thread in threading.enumerate() if thread.name == "sink-Memory"]


def test_a_missing_package_is_named_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    for option in (["--tensorboard", "logs"], ["--mlflow", "http://127.0.0.1:1"]):
        assert cli.run(["simulate", str(EXPERIMENTS / "digits-fedavg.yaml"), *option]) == 1
        package = option[0].removeprefix("--")
        assert capsys.readouterr().err == (
            f"fedquilt: {option[0]} needs the Python package {package}: run `pip install 'fedquilt[{package}]'`\n"
        )
    assert not (tmp_path / "runs").exists()


# --- TensorBoard ----------------------------------------------------------------------------------------------


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Read a curve as TensorBoard itself does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, round(event.value, 6)) for event in reader.Scalars(tag)]


def test_tensorboard_reads_every_round_once_also_after_a_crash(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from fedquilt_server.sinks.tensorboard import PREFIX, TensorBoardSink, read_last_step

    first = TensorBoardSink(tmp_path / "demo-1")
    for row in rows(3):
        first.write(row.round, {**round_scalars(row), **board_scalars(BOARDS)})
    first.end("failed")
    (file,) = (tmp_path / "demo-1").glob(f"{PREFIX}.*")
    file.write_bytes(file.read_bytes()[:-10])  # a crash cuts the last record
    second = TensorBoardSink(tmp_path / "demo-1")
    assert second.last_round == 2
    for row in rows(5)[2:]:
        second.write(row.round, round_scalars(row))
    second.end("finished")
    assert read_last_step(tmp_path / "demo-1") == 5
    assert curve(tmp_path / "demo-1", "score/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]
    assert curve(tmp_path / "demo-1", "board pi-1/celsius") == [(1, 51.5), (2, 51.5)]


# --- MLflow ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """MLflow's own store of files: it needs no server."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{tmp_path}/mlruns"


def test_mlflow_continues_the_run_that_it_knows(store: str) -> None:
    from mlflow.tracking import MlflowClient

    from fedquilt_server.sinks.mlflow import MlflowSink

    first = MlflowSink(store, "demo", "demo-1", {"training.lr": 0.05, "model.name": "m" * 1000})
    for row in rows(2):
        first.write(row.round, round_scalars(row))
    second = MlflowSink(store, "demo", "demo-1", {})
    assert (first.last_round, second.last_round) == (0, 2)
    second.write(3, round_scalars(rows(3)[2]))
    second.end("stopped")
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("demo").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["training.lr"]) == ("demo-1", "KILLED", "0.05")
    history = client.get_metric_history(run.info.run_id, "score/accuracy")
    assert [(metric.step, round(metric.value, 6)) for metric in history] == [(1, 0.1), (2, 0.2), (3, 0.3)]
