"""FedAIoT's noise matrix: its rows, its file, and the training that it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.support import warm
from tests.support.recorded_runs import write_run

from fedquilt_common.cli import run as fedquilt
from fedquilt_common.datasets.label_noise import transition_weights
from fedquilt_common.experiment.data_section import LabelNoise
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.central.noise_matrix import count_confusions, measure_confusions, write_matrix
from fedquilt_server.lab.workbench import Workbench

EXPERIMENT = {
    "name": "small", "rounds": 2, "data": {"set": "digits", "clients": 4, "label_noise": {"ratio": 0.5}},
    "model": {"name": "mlp", "hidden": [16]}, "algorithm": {"name": "fedavg"},
}  # fmt: skip


def test_the_rows_add_up_to_one() -> None:
    right, given = np.array([0, 0, 0, 0, 1, 1, 3]), np.array([0, 1, 1, 3, 1, 1, 0])
    found = count_confusions(right, given, 4)
    assert found.rows.tolist() == [[0.25, 0.5, 0, 0.25], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert (found.samples, found.accuracy, found.unmistaken) == (7, 3 / 7, [1, 2])


def test_label_noise_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    rows = count_confusions(np.array([0, 0, 0, 1, 2, 2, 2]), np.array([0, 1, 2, 1, 0, 0, 1]), 3).rows
    write_matrix(tmp_path / "noise" / "q.csv", rows.tolist())
    noise = LabelNoise(kind="matrix", ratio=0.1, file="noise/q.csv")
    assert transition_weights(noise, 3).tolist() == [[0, 0.5, 0.5], [0, 0, 0], [2 / 3, 1 / 3, 0]]


def command(*words: str, where: Path) -> str:
    """Run ``fedquilt data noise-matrix``; returns what it prints."""
    done = warm.fedquilt("data", "noise-matrix", *words, where=where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_experiment_and_its_run_give_the_same_matrix(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    found = json.loads(command("small.yaml", "--out", "q.csv", "--epochs", "3", "--json", where=tmp_path))
    assert np.allclose(np.sum(found["matrix"], axis=1), 1)
    assert (found["samples"], found["split"]) == (364, "test")
    assert found["accuracy"] > 0.5
    assert np.loadtxt(tmp_path / "q.csv", delimiter=",").tolist() == found["matrix"]
    trained = "runs/small-noise-matrix"
    assert "label noise" not in (tmp_path / trained / "result.json").read_text()
    said = command(trained, "--out", "again.csv", where=tmp_path)
    assert "ratio: 0.1, file: again.csv}. Copy the file into the folder in FEDQUILT_DATA first" in said
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "q.csv").read_text()
    known = json.loads(command(trained, "--out", "train.csv", "--split", "train", "--json", where=tmp_path))
    assert known["samples"] == 1433


def test_the_global_model_may_be_that_of_a_variant() -> None:
    """As that of FedDF, whose boards train models of several kinds."""
    variants = [{"model": {"name": "mlp", "hidden": hidden}} for hidden in ([16], [8, 8])]
    raw = {**EXPERIMENT, "algorithm": {"name": "feddf"}, "fleet": [{"clients": 4, "variants": variants}]}
    experiment = Experiment.model_validate({**raw, "model": {"name": "mlp", "hidden": [32, 32]}})
    for learner in Workbench(experiment).prototypes:
        assert measure_confusions(experiment, learner.init(1), "test").samples == 364


def test_a_run_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", [0.5])
    (folder / "experiment.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "rounds": 2_000_000}))
    (folder / "global.safetensors").touch()
    assert fedquilt(["data", "noise-matrix", str(folder), "--out", str(tmp_path / "q.csv")]) == 6
    assert "(rounds: must be at most 1,000,000); use the version of the run" in capsys.readouterr().err


def test_what_gives_no_matrix_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert fedquilt(["data", "noise-matrix", "empty", "--out", "q.csv"]) == 6
    assert "no round is finished there" in capsys.readouterr().err
    assert fedquilt(["data", "noise-matrix", "echo.yaml", "--out", "empty"]) == 4
    assert "--out empty: is a folder" in capsys.readouterr().err
    assert fedquilt(["data", "noise-matrix", "empty", "--out", "q.csv", "--epochs", "3"]) == 4
    assert "--epochs: the run has a trained model already" in capsys.readouterr().err
    Path("echo.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "algorithm": {"name": "echo"}}))
    assert fedquilt(["data", "noise-matrix", "echo.yaml", "--out", "q.csv"]) == 4
    assert "its samples have no class each" in capsys.readouterr().err
