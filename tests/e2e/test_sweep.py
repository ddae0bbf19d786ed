"""``fedquilt sweep`` as a user runs it: real runs, one that fails, an interruption, boards on a broker."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import warm
from tests.support.round_gate import RoundGate
from tests.support.runs import EXPERIMENTS, HURRY, PATIENCE, recording_broker

import fedquilt as fq
from fedquilt_common import cli
from fedquilt_server.runs.run_folder import claim_folder

METHODS = f"""
name: methods
experiment: {EXPERIMENTS / "digits-fedavg.yaml"}
vary:
  seed: [1, 2]
  method:
    plain: {{algorithm.name: fedavg}}
    pulled: {{algorithm: {{name: fedprox, mu: 0.1}}}}
    exploding: {{training.lr: 1.0e+30}}
exclude:
  - {{seed: 2, method: exploding}}
"""
UNTRAINED = """
name: idle
rounds: 40
data: {set: digits, clients: 2}
model: {name: ballast, megabytes: 0.1}
algorithm: {name: echo}
"""
"""No process needs torch for it."""


def sweeping(folder: Path, gate: RoundGate, *words: str) -> AbstractContextManager[warm.WarmCommand]:
    return warm.running("sweep", *words, where=folder, before=gate.install)


def sweep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.fedquilt("sweep", *words, where=folder, before=HURRY, patience=PATIENCE)


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return found


def statuses(folder: Path) -> dict[str, str]:
    return {run["folder"]: run["status"] for run in manifest(folder)["runs"]}


def test_seeds_of_methods_and_a_run_that_fails(tmp_path: Path) -> None:
    (tmp_path / "methods.yaml").write_text(METHODS)
    done = sweep(tmp_path, "methods.yaml", "--set", "rounds=1", "--set", "training.epochs=1", "--jobs", "2", "--json")
    assert done.returncode == 7
    folder = tmp_path / "runs" / "methods"
    assert statuses(folder) == {
        "seed=1,method=plain": "finished", "seed=1,method=pulled": "finished", "seed=1,method=exploding": "failed",
        "seed=2,method=plain": "finished", "seed=2,method=pulled": "finished",
    }  # fmt: skip
    failed = manifest(folder)["runs"][2]
    assert (failed["exit_code"], "the loss became nan" in failed["reason"]) == (7, True)
    assert "fedquilt: Not finished: 1 of 5 runs" in done.stderr
    assert "seed=1, method=exploding: round 1 cannot reach its quorum" in done.stderr
    assert "(folder runs/methods/seed=1,method=exploding)" in done.stderr
    scores = [run["final"].get("accuracy") for run in json.loads(done.stdout)["runs"]]
    assert [score is None for score in scores] == [False, False, True, False, False]

    loaded = fq.load_sweep(folder)
    assert [each.settings for each in loaded.failed] == [{"seed": 1, "method": "exploding"}]
    assert [each.run.rounds[-1].accuracy for each in loaded.finished if each.run] == [s for s in scores if s]


def test_an_interrupted_sweep_resumes_and_skips_what_is_finished(tmp_path: Path) -> None:
    (tmp_path / "idle.yaml").write_text(UNTRAINED)
    words = ("idle.yaml", "--vary", "seed=1,2", "--out", "all", "--jobs", "1")
    first = tmp_path / "all" / "seed=1"
    claim_folder(first)
    (first / "run").symlink_to(first)  # where the gate looks for the journal
    gate = RoundGate(tmp_path / "gate")
    with sweeping(tmp_path, gate, *words) as process:
        gate.finish_round(first, 2)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        stopped = process.finish(PATIENCE)
    assert stopped.returncode == 130, stopped.stderr
    assert "Interrupted after 0 of 2 runs. Run the same command again to resume; the folder is all" in stopped.stderr
    assert statuses(tmp_path / "all") == {"seed=1": "stopped", "seed=2": "pending"}
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert (len(family) >= 4, alive) == (True, [])
    run = json.loads((first / "result.json").read_text())["run"]

    done = sweep(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "all") == {"seed=1": "finished", "seed=2": "finished"}
    result = json.loads((first / "result.json").read_text())
    assert (result["run"], len(result["rounds"])) == (run, 40), "the run went on where it was"

    again = sweep(tmp_path, *words)
    assert again.returncode == 0
    assert "2 runs in all; 2 finished already" in again.stderr
    (first / "result.json").write_text("{")  # as a disk that was cut off may leave it
    assert sweep(tmp_path, *words).returncode == 0
    restored = json.loads((first / "result.json").read_text())
    assert restored == {**result, "coordinator_memory": {"idle": 0, "peak": 0}}
    changed = sweep(tmp_path, *words, "--set", "rounds=41")
    assert changed.returncode == 6
    assert "seed=2 holds a run of another experiment (rounds was 40 and is 41)" in changed.stderr


def test_boards_take_part_in_one_run_after_another(tmp_path: Path) -> None:
    (tmp_path / "idle.yaml").write_text(UNTRAINED)
    with recording_broker(tmp_path / "broker") as (url, messages):
        words = ("agent", "--broker", url, "--id", "pi", "--clients", "0-1", "--state", str(tmp_path / "pi"))
        with warm.running(*words, where=tmp_path):
            done = sweep(
                tmp_path, "idle.yaml", "--vary", "seed=1,2", "--set", "rounds=2", "--broker", url, "--jobs", "1"
            )
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "runs" / "idle-sweep") == {"seed=1": "finished", "seed=2": "finished"}
    assert done.stderr.count("Status page: http://127.0.0.1:") == 2
    agents = {message.topic.split("/")[4] for message in messages if "/agents/" in message.topic}
    assert agents == {"pi"}, "nothing is simulated"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--federation", "lab"), "need --broker"),
        (("--broker", "mqtt://127.0.0.1", "--jobs", "2"), "boards take part in one run at a time"),
        (("--port", "8080", "--jobs", "2"), "two pages cannot share a port"),
    ],
)
def test_options_for_boards_need_a_broker_and_one_run_at_a_time(
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("idle.yaml").write_text(UNTRAINED)
    assert cli.run(["sweep", "idle.yaml", "--vary", "seed=1,2", *options]) == 4
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()
