"""A simulation that fails: the page, ``result.json`` and the terminal show that it failed, and why."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.runs import EXPERIMENTS, HURRY, PATIENCE, await_round, simulating

from fedquilt_server.simulate.mosquitto import free_port

IDLE = """
name: idle
rounds: 100000
data: {set: digits, clients: 2}
model: {name: ballast, megabytes: 0.1}
algorithm: {name: echo}
fleet:
  - {kind: pi, agents: 2, clients: 2}
"""


def await_failure(port: int) -> dict[str, Any]:
    """Return the snapshot of the page once it shows a failure."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            shown: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/api/status", timeout=60).json()
        except httpx.HTTPError:
            shown = {}
        if shown.get("phase") == "failed":
            return shown
        time.sleep(0.1)
    raise AssertionError("the page shows no failure")


def result(folder: Path) -> tuple[str, str, int]:
    found = json.loads((folder / "run" / "result.json").read_text())
    return found["status"], found["reason"], found["exit_code"]


def test_a_model_that_diverges(tmp_path: Path) -> None:
    """The coordinator ends the run. The page stays, and the next command resumes the run."""
    port, fails = free_port(), EXPERIMENTS / "digits-fedavg.yaml"
    all_fail = ("--set", "training.lr=1e30", "--set", "participation.quorum=1")  # with a quorum of 8, one is enough
    options = (*all_fail, "--port", str(port), "--linger", "60")
    with simulating(fails, tmp_path, *options, before=HURRY) as process:
        shown = await_failure(port)
        process.send_signal(signal.SIGINT)  # ends the lingering
        done = process.finish(PATIENCE)
    assert (done.returncode, done.stdout) == (7, "")
    status, reason, code = result(tmp_path)
    assert (status, code) == ("failed", 7)
    counts = "round 1 cannot reach its quorum of 1: 8 of 8 clients failed"
    assert f"{counts} (such as client 0: the loss became nan" in reason
    assert shown["message"] == reason
    assert f"fedquilt: {reason}" in done.stderr
    assert "The page stays for 60 s" in done.stderr


@pytest.mark.parametrize(("policy", "code", "status"), [("warn", 0, "finished"), ("stop", 7, "failed")])
def test_a_loss_that_explodes_is_reported_and_ends_the_run_if_wanted(
    policy: str, code: int, status: str, tmp_path: Path
) -> None:
    changes = ("rounds=2", "training.lr=1e9", f"on_divergence={policy}")
    options = (word for change in changes for word in ("--set", change))
    with simulating(EXPERIMENTS / "digits-fedavg.yaml", tmp_path, *options) as process:
        done = process.finish(PATIENCE)
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (done.returncode, found["status"], len(found["rounds"])) == (code, status, 2 if policy == "warn" else 1)
    (warning,) = found["warnings"]
    assert "over 10 times that of a model that guesses (2.303): the training has diverged" in warning
    assert "the training has diverged" in done.stderr
    assert all(f"round {row['round']}/2: accuracy" in done.stderr for row in found["rounds"])
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert (kinds.count("diverged"), kinds[-1]) == (1, status)
    assert not list((tmp_path / "run" / "blobs" / "replies").iterdir())


def test_a_data_set_that_is_missing(tmp_path: Path) -> None:
    """The coordinator ends before its run begins."""
    options = ("--set", "data.set=cifar10")
    with simulating(EXPERIMENTS / "digits-fedavg.yaml", tmp_path, *options, FEDQUILT_DATA=str(tmp_path)) as process:
        done = process.finish(PATIENCE)
    status, reason, code = result(tmp_path)
    assert (done.returncode, status, code) == (5, "failed", 5)
    assert "cifar10" in reason
    assert reason.splitlines()[-1] in done.stderr


def test_an_agent_that_cannot_run(tmp_path: Path) -> None:
    """``simulate`` ends the run; its coordinator records and shows the reason."""
    port = free_port()
    (tmp_path / "idle.yaml").write_text(IDLE)
    with simulating(tmp_path / "idle.yaml", tmp_path, "--port", str(port), "--linger", "60") as process:
        await_round(tmp_path, 2)
        killed = set[int]()
        while len(killed) < 4:
            pid = json.loads((tmp_path / "run" / "pids.json").read_text())["agents"]["pi-0"]
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGILL)
            time.sleep(0.05)
        shown = await_failure(port)
        process.send_signal(signal.SIGINT)
        done = process.finish(PATIENCE)
    assert done.returncode == 7
    status, reason, code = result(tmp_path)
    assert (status, code) == ("failed", 7)
    assert reason.startswith("pi-0 was killed by SIGILL (Illegal instruction). The end of its log")
    assert shown["message"] == reason
    assert reason.splitlines()[0] in done.stderr
    assert not (tmp_path / "run" / "stop.json").exists()


EXTRA = """
from dataclasses import dataclass, replace
import numpy as np
from fedquilt import FedAvg

@dataclass(frozen=True)
class Extra(FedAvg):
    numbers: int

    def train(self, task, ctx):
        reply = super().train(task, ctx)
        return replace(reply, arrays={**reply.arrays, "control": np.zeros(self.numbers, np.float32)})
"""


@pytest.mark.parametrize("numbers", [3, 100_000], ids=["small", "too large for the reply"])
def test_an_algorithm_whose_reply_has_an_array_that_its_task_does_not_expect(numbers: int, tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text(EXTRA)
    changes = ("algorithm.name=extra:Extra", f"algorithm.numbers={numbers}", "participation.deadline=3600")
    options = (word for change in changes for word in ("--set", change))
    experiment, path = EXPERIMENTS / "digits-fedavg.yaml", str(tmp_path)
    with simulating(experiment, tmp_path, *options, before=HURRY, PYTHONPATH=path) as process:
        done = process.finish(PATIENCE)
    status, reason, code = result(tmp_path)
    assert (done.returncode, status, code) == (7, "failed", 7)
    assert "has arrays that its task does not expect: 'control'; list them in Task.expect" in reason
    assert f"The log of each agent is in {tmp_path / 'run' / 'logs'}" in reason
    assert "'control'" in (tmp_path / "run" / "logs" / "strong-0.log").read_text()
