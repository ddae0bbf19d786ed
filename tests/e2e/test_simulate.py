"""``fedquilt simulate`` and ``bench``, as a user runs them: real broker, coordinator, agents and workers.

One short experiment, whose model must come out the same to the bit whatever is killed on the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import warm
from tests.support.round_gate import Installable, RoundGate
from tests.support.runs import finished_rounds, workers_of
from tests.support.warm import ForkedProgram

from fedquilt_common.wire.codec import FileArrays

EXPERIMENTS = Path(__file__).parents[2] / "deploy" / "experiments"
ROUNDS = 7
# Long enough a round to be hit in the middle, short enough to wait for.
SHORT = ("--set", f"rounds={ROUNDS}", "--set", "training.epochs=4")
PATIENCE = 100.0
COLUMNS = {
    "round", "accuracy", "loss", "seconds", "train_seconds", "overhead_seconds", "bytes_down", "bytes_up",
    "model_bytes", "clients", "late", "rejected",
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def fedquilt(
    *arguments: str, where: Path, start: type[subprocess.Popen[str]] = ForkedProgram, gate: Installable | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run the command in the folder ``where``; all its processes are stopped afterwards. A gate needs a forked one."""
    command = [sys.executable, "-m", "fedquilt_common.cli", *arguments]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(command, cwd=where, preexec_fn=gate.install if gate else None, **streams) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, out, err)


def run(*arguments: str, where: Path, start: type[subprocess.Popen[str]] = ForkedProgram) -> Done:
    with fedquilt(*arguments, where=where, start=start) as process:
        return finish(process)


def simulate(experiment: str, *options: str) -> tuple[str, ...]:
    return ("simulate", str(EXPERIMENTS / f"{experiment}.yaml"), "--out", "run", *SHORT, *options)


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / "run" / "global.safetensors").read_bytes()).hexdigest()


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return found


def pids(folder: Path) -> dict[str, int]:
    """Return the running processes by name."""
    found = json.loads((folder / "run" / "pids.json").read_text())
    return {"broker": found["broker"], "coordinator": found["coordinator"], **found["agents"]}


def fork_servers(folder: Path) -> dict[str, int]:
    """Return the running fork servers by name."""
    found: dict[str, int] = json.loads((folder / "run" / "pids.json").read_text())["fork_servers"]
    return found


def wait_for(done: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, f"no {what} after {PATIENCE} seconds"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The experiment, run once without disturbance, by a program that begins as a user's does."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(*simulate("digits-fedavg", "--json"), where=folder, start=subprocess.Popen)


@pytest.mark.quick
def test_a_run_leaves_what_is_documented(undisturbed: tuple[Path, Done]) -> None:
    folder, done = undisturbed
    assert done.code == 0, done.err
    names = {path.name for path in (folder / "run").iterdir()}
    files = {"experiment.yaml", "journal.sqlite", "begun.json", "result.json", "global.safetensors"}
    assert files | {"blobs", "rounds.csv", "boards.csv"} <= names
    found = result(folder)
    assert (found["algorithm"], found["dataset"], len(found["rounds"])) == ("fedavg", "digits", ROUNDS)
    for number, row in enumerate(found["rounds"], 1):
        assert row.keys() >= COLUMNS
        assert (row["round"], row["clients"], row["late"], row["rejected"]) == (number, 8, 0, 0)
        assert row["seconds"] >= row["train_seconds"] > 0
        # to the broker once, not once a client; back once a client
        assert row["model_bytes"] < row["bytes_down"] < 2 * row["model_bytes"]
        assert 8 * row["model_bytes"] < row["bytes_up"] < 10 * row["model_bytes"]
    assert found["final"]["accuracy"] == found["rounds"][-1]["accuracy"] > 0.9
    assert found["final"]["global_sha256"] == fingerprint(folder)
    assert [(row["client"], row["precision"], row["trainings"]) for row in found["memory"]] == [
        (client, "fp32", ROUNDS) for client in range(8)
    ]
    assert all(row["gpu_memory_peak"] is None for row in found["memory"])
    if sys.platform == "linux":
        assert found["final"]["memory_peak"] == max(row["memory_peak"] for row in found["memory"]) > 10_000_000
    lines = (folder / "run" / "rounds.csv").read_text().splitlines()
    assert len(lines) == ROUNDS + 1
    assert set(lines[0].split(",")) >= COLUMNS
    assert len(FileArrays(folder / "run" / "global.safetensors")) == 4


@pytest.mark.quick
def test_json_is_all_there_is_on_stdout(undisturbed: tuple[Path, Done]) -> None:
    folder, done = undisturbed
    found = json.loads(done.out)
    assert set(found.pop("restarts").values()) == {0}
    assert found == result(folder)
    assert "Status page: http://127.0.0.1:" in done.err


@pytest.mark.quick
def test_nothing_runs_on_afterwards(undisturbed: tuple[Path, Done]) -> None:
    folder, _ = undisturbed
    assert [name for name, pid in pids(folder).items() if psutil.pid_exists(pid)] == []


@pytest.mark.quick
def test_a_finished_folder_is_refused(undisturbed: tuple[Path, Done]) -> None:
    folder, _ = undisturbed
    before = fingerprint(folder)
    for arguments in (simulate("digits-fedavg"), simulate("digits-fedavg", "--set", "seed=8")):
        done = run(*arguments, where=folder)
        assert done.code == 6
        assert "--out" in done.err
        assert "Traceback" not in done.err
    assert fingerprint(folder) == before


def test_kills_change_no_bit(undisturbed: tuple[Path, Done], tmp_path: Path) -> None:
    """Kill coordinator, agent and broker one after another, each in the middle of a round."""
    gate = RoundGate(tmp_path / "gate")
    with fedquilt(*simulate("digits-fedavg"), where=tmp_path, gate=gate) as process:
        for number, who in enumerate(("coordinator", "strong-0", "broker")):
            gate.finish_round(tmp_path, 2 * number + 1)
            before = pids(tmp_path)
            os.kill(before[who], signal.SIGKILL)
            wait_for(lambda who=who, before=before: pids(tmp_path)[who] != before[who], "successor")  # type: ignore[misc]
            after = pids(tmp_path)
            assert {name for name in before if before[name] != after[name]} == {who}
        assert finished_rounds(tmp_path) < ROUNDS
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert [row["clients"] for row in result(tmp_path)["rounds"]] == [8] * ROUNDS
    assert fingerprint(tmp_path) == fingerprint(undisturbed[0])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: processes are forked there only")
def test_killed_fork_servers_change_no_bit(undisturbed: tuple[Path, Done], tmp_path: Path) -> None:
    """The training processes end with their server, and the agents with theirs; all are started again."""
    gate = RoundGate(tmp_path / "gate")
    with fedquilt(*simulate("digits-fedavg"), where=tmp_path, gate=gate) as process:
        for number, who in enumerate(("fork-workers", "fork-agents")):
            gate.finish_round(tmp_path, 2 * number + 1)
            before = fork_servers(tmp_path)
            agent = pids(tmp_path)["strong-0"]
            assert psutil.Process(agent).ppid() == before["fork-agents"]
            assert {psutil.Process(pid).ppid() for pid in workers_of(agent)} == {before["fork-workers"]}
            os.kill(before[who], signal.SIGKILL)
            wait_for(lambda who=who, before=before: fork_servers(tmp_path)[who] != before[who], "successor")  # type: ignore[misc]
        assert finished_rounds(tmp_path) < ROUNDS
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert fingerprint(tmp_path) == fingerprint(undisturbed[0])


def bench(clients: int, where: Path) -> dict[str, Any]:
    arguments = ("--agents", "2", "--clients", str(clients), "--megabytes", "1", "--rounds", "2", "--json")
    done = warm.fedquilt("bench", "round", *arguments, where=where, patience=PATIENCE)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_goes_down_does_not_grow_with_the_clients(tmp_path: Path) -> None:
    few, many = bench(2, tmp_path), bench(8, tmp_path)
    for found, clients in ((few, 2), (many, 8)):
        assert {"broker", "coordinator", "bench-0", "bench-1"} == found["processes"].keys()
        assert all(numbers["peak_bytes"] > 1e6 for numbers in found["processes"].values())
        assert [row["round"] for row in found["rounds"]] == [1, 2]
        for row in found["rounds"]:
            assert row["seconds"] > 0
            assert row["clients"] == clients
            assert clients * 1e6 < row["bytes_up"] < clients * 1.1e6
    for row, other in zip(few["rounds"], many["rounds"], strict=True):
        assert row["bytes_down"] > 1e6
        assert other["bytes_down"] == pytest.approx(row["bytes_down"], rel=0.02)
