"""``fedquilt central`` as a user runs it: interrupted, killed, resumed, and compared with a federated run."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support import warm
from tests.support.runs import await_round

from fedquilt_common.cli import run as fedquilt

EXPERIMENT = str(Path(__file__).parents[2] / "deploy" / "experiments" / "digits-fedavg.yaml")
WORDS = ("central", EXPERIMENT, "--out", "run", "--set", "rounds=30", "--set", "training.momentum=0.9")


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "run" / "global.safetensors").read_bytes()).hexdigest()


def result(folder: Path) -> Any:
    return json.loads((folder / "run" / "result.json").read_text())


def test_a_killed_and_interrupted_training_gives_the_same_model(tmp_path: Path) -> None:
    calm, hurt = tmp_path / "calm", tmp_path / "hurt"
    for folder in (calm, hurt):
        folder.mkdir()
    done = warm.fedquilt(*WORDS, "--json", where=calm)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == result(calm)
    assert "round 30/30: accuracy" in done.stderr
    for number, rounds in ((signal.SIGKILL, 2), (signal.SIGTERM, 5)):
        with warm.running(*WORDS, where=hurt) as command:
            await_round(hurt, rounds)
            command.send_signal(number)
            ended = command.finish()
        assert ended.returncode != 0
    assert (ended.returncode, result(hurt)["status"], result(hurt)["exit_code"]) == (143, "stopped", 143)
    assert "Run the same command again to resume" in ended.stderr
    assert warm.fedquilt(*WORDS, where=hurt).returncode == 0
    assert sha256(hurt) == sha256(calm) == result(calm)["final"]["global_sha256"]
    assert [row["loss"] for row in result(hurt)["rounds"]] == [row["loss"] for row in result(calm)["rounds"]]
    again = warm.fedquilt(*WORDS, where=hurt)
    assert again.returncode == 0
    assert "digits-fedavg: central on digits" in again.stdout


def test_it_is_the_baseline_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--set", "rounds=2", "--set", "training.epochs=1")
    assert warm.fedquilt("central", EXPERIMENT, "--out", "central", *short, where=tmp_path).returncode == 0
    assert warm.fedquilt("simulate", EXPERIMENT, "--out", "fedavg", *short, where=tmp_path).returncode == 0
    assert fedquilt(["compare", str(tmp_path / "central"), str(tmp_path / "fedavg"), "--json"]) == 0
    assert "central" in capsys.readouterr().out
    assert fedquilt(["replay", str(tmp_path / "central")]) == 6
    assert "has trained in one place, so no board has sent a reply" in capsys.readouterr().err
    assert fedquilt(["report", str(tmp_path), "--format", "md", "--out", str(tmp_path / "report")]) == 0
    assert "central" in (tmp_path / "report" / "report.md").read_text()


def test_an_experiment_without_training_is_refused(tmp_path: Path) -> None:
    done = warm.fedquilt("central", EXPERIMENT, "--set", "algorithm={name: echo}", where=tmp_path)
    assert done.returncode == 4
    assert "it trains no model" in done.stderr
