"""The sweep files of benchmarks/: each one's experiments are valid, and its smallest case runs on the real data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import warm
from tests.support.data import data_folder, real_data

from fedquilt_server.sweep.plan import plan_sweep
from fedquilt_server.sweep.sweep_file import read_source

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATIENCE = 300.0


@pytest.mark.parametrize(
    ("name", "runs", "figures"), [("submodels", 3 * 7, 0), ("personal", 9 + 3, 12), ("soft_labels", 3 * 2 * 5, 4)]
)
def test_every_run_is_valid(name: str, runs: int, figures: int) -> None:
    source = read_source(BENCHMARKS / f"{name}.yaml")
    assert len(plan_sweep(source).runs) == runs
    assert sum(len(table.figures) for table in source.published) == figures


def test_there_are_no_others() -> None:
    assert sorted(path.stem for path in BENCHMARKS.glob("*.yaml")) == ["personal", "soft_labels", "submodels"]


@pytest.mark.parametrize(
    ("name", "data", "options", "score"),
    [
        ("submodels", "fashion-mnist", ["--vary=method=scalefl", "--set=data.clients=3", "--set=rounds=1",
                                        "--set=participation={}", "--set=fleet.0.clients=1",
                                        "--set=fleet.1.clients=1", "--set=fleet.2.clients=1",
                                        "--set=data.partition.shares=200"], "average_accuracy"),
        ("personal", "fashion-mnist", ["--vary=data.set=fashion-mnist", "--vary=method=fedrep", "--set=rounds=1",
                                       "--set=data.partition={scheme: uniform, shares: 500}",
                                       "--set=training.epochs=1"], "best_personal_accuracy"),
        ("soft_labels", "uci-har", ["--vary=shares=iid", "--vary=method=alone", "--vary=algorithm.kd_loss=mse"],
         "personal_accuracy"),
    ],
)  # fmt: skip
def test_its_smallest_case_runs(tmp_path: Path, name: str, data: str, options: list[str], score: str) -> None:
    real_data(data)
    words = ("sweep", str(BENCHMARKS / f"{name}.yaml"), "--vary=seed=1", *options, "--json")
    environment = {"FEDQUILT_DATA": str(data_folder())}
    done = warm.fedquilt(*words, where=tmp_path, environment=environment, patience=PATIENCE)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert 0 < run["final"][score] < 1
