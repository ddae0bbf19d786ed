"""The sweeps of benchmarks/, and those of papers: all are valid, and small cases run on real data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import warm
from tests.support.accounting import FEW_ORDERS
from tests.support.data import data_folder, real_data
from tests.support.packages import needs

from fedquilt_common.datasets.files import open_packed
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.report.contents import make_contents
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.sources import gather_runs
from fedquilt_server.sweep.plan import plan_sweep
from fedquilt_server.sweep.sweep_file import read_source

FEDAIOT = Path(__file__).parents[2] / "deploy" / "experiments" / "fedaiot"
PRIVACY = FEDAIOT.parent / "privacy"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATIENCE = 300.0
CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of an image and its label."""


SWEEPS = {
    "submodels": (3 * 7, 5),
    "personal": (9 + 3, 12),
    "soft_labels": (3 * 2 * 5, 4),
    "fedreb_options": (7, 0),
    "fedreb_small": (114, 18),
    "fedreb_hundred": (24, 6),
    "fedreb_tables": (16, 16),
    "adaptivefl_small": (27, 5),
    "fedrolex_small": (2 * 5, 10),
    "adaptivefl_tables": (3 * 27, 27),
    "fedrolex_rounds": (3 * 8, 0),
    "aep_variants": (3 * 4, 0),
}
"""Name -> number of runs and of published figures."""


@pytest.mark.quick
@pytest.mark.parametrize("name", SWEEPS)
def test_every_run_is_valid(name: str) -> None:
    runs, figures = SWEEPS[name]
    source = read_source(BENCHMARKS / f"{name}.yaml")
    assert len(plan_sweep(source).runs) == runs
    assert sum(len(table.figures) for table in source.published) == figures


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "runs", "figures"),
    [
        ("adaptivefl/table-2", 2 * 2 * 3 * 3 * 5, 60),
        ("adaptivefl/table-2-femnist", 2 * 3 * 5, 10),
        ("adaptivefl/table-3", 4 * 3 * 4, 16),
        ("adaptivefl/table-4", 2 * 2 * 3 * 3 * 2, 24),
        ("adaptivefl/figure-4", 4 * 3 * 4, 0),
        ("adaptivefl/figure-5", 3 * 5, 0),
        ("fedrolex/table-3.2", 4 * 3 * 5, 20),
        ("fedrolex/table-3.3", 4 * 3 * 3, 12),
        ("fedrolex/table-3.4", 2 * 3 * 4, 8),
        ("fedrolex/table-3.5", 3 * 3 * 3, 9),
        ("fedrolex/figure-3.3", 11 * 4 * 3, 0),
        ("fedrolex/figure-3.4", 4 * 3 * 2 * 4, 0),
        ("fedrolex/figure-3.6", 4 * 3 * 5, 0),
        ("fedreb/table-5.1", 3 * 8, 8),
        ("fedreb/table-5.3", 3 * 6, 6),
        ("fedreb/table-5.4", 3 * 8, 8),
        ("fedreb/table-5.5", 2 * 2 * 3 * 9, 36),
        ("fedreb/table-5.6", 2 * 2 * 3 * 9, 36),
    ],
)
def test_every_run_of_a_papers_table_is_valid(name: str, runs: int, figures: int) -> None:
    source = read_source(FEDAIOT.parent / f"{name}.yaml")
    planned = plan_sweep(source).runs
    assert len(planned) == runs
    cases = {tuple(sorted(figure.case.items())) for table in source.published for figure in table.figures}
    assert len(cases) == figures
    settings = [set(run.variation.settings.items()) for run in planned]
    assert all(any(set(case) <= own for own in settings) for case in cases)


EXPERIMENTS = "privacy_audit_few", "privacy_audit_har"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_valid(name: str) -> None:
    assert load_experiment(BENCHMARKS / f"{name}.yaml").data.clients > 1


@pytest.mark.quick
def test_there_are_no_others() -> None:
    found = {path.stem for path in BENCHMARKS.glob("*.yaml")}
    assert found == {*SWEEPS, *EXPERIMENTS}


def first_images(published: Path, folder: Path) -> Path:
    """Copy the first images of CIFAR-10 into a folder of data sets: to unpack and evaluate all takes long."""
    (folder / "cifar10").mkdir(parents=True)
    for name, count in (("data_batch_1", 1000), ("test_batch", 500)):
        with open_packed(min((published / "cifar10").rglob(f"{name}*.bin*"))) as stream:
            (folder / "cifar10" / f"{name}.bin").write_bytes(stream.read(count * CIFAR_RECORD))
    return folder


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    ("name", "data", "options", "score"),
    [
        ("submodels", "cifar10", ["--vary=method=scalefl", "--set=data.clients=3", "--set=rounds=1",
                                        "--set=participation={}", "--set=fleet.0.clients=1",
                                        "--set=fleet.1.clients=1", "--set=fleet.2.clients=1",
                                        "--set=data.partition.shares=4",
                                        "--set=model.width=0.05"], "average_accuracy"),
        ("personal", "fashion-mnist", ["--vary=data.set=fashion-mnist", "--vary=method=fedrep", "--set=rounds=1",
                                       "--set=data.partition={scheme: uniform, shares: 500}",
                                       "--set=training.epochs=1"], "best_personal_accuracy"),
        ("soft_labels", "uci-har", ["--vary=shares=iid", "--vary=method=alone", "--vary=algorithm.kd_loss=mse"],
         "personal_accuracy"),
    ],
)  # fmt: skip
def test_its_smallest_case_runs(tmp_path: Path, name: str, data: str, options: list[str], score: str) -> None:
    folder = real_data(data)
    if data == "cifar10":
        folder = first_images(folder, tmp_path / "data")
    words = ("sweep", str(BENCHMARKS / f"{name}.yaml"), "--vary=seed=1", *options, "--json")
    environment = {"FEDQUILT_DATA": str(folder)}
    done = warm.fedquilt(*words, where=tmp_path, environment=environment, patience=PATIENCE)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert 0 < run["final"][score] < 1


SMALL_AEP = ["--vary=dataset=aep", "--vary=seed=1", "--set=rounds=2", "--set=data.clients=4", "--set=evaluate_every=1"]


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    ("name", "options", "score"),
    [
        ("table-5", ["--vary=method=fedopt", "--vary=data.partition.alpha=0.5"], "best_r2"),
        ("table-6", ["--vary=participation.ratio=0.3"], "best_r2_at_50"),
        ("table-8", ["--vary=precision=fp32"], "best_r2"),
    ],
)
def test_a_small_case_of_a_papers_table_runs(tmp_path: Path, name: str, options: list[str], score: str) -> None:
    real_data("aep")
    words = ("sweep", str(FEDAIOT / f"{name}.yaml"), "--out=swept", *SMALL_AEP, *options, "--json")
    environment = {"FEDQUILT_DATA": str(data_folder())}
    done = warm.fedquilt(*words, where=tmp_path, environment=environment, patience=PATIENCE)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["final"]["best_r2"] < 1
    contents = make_contents(gather_runs([tmp_path / "swept"]))
    assert "these runs have rounds = 2, data.clients = 4, evaluate_every = 1" in contents.notes[0]
    table = contents.tables["published-1"]
    (row,) = [row for row in table.rows if row[2]]
    ours = dict(zip([column.key for column in table.columns], row, strict=True))
    assert isinstance(ours[score], MeanDeviation)
    assert isinstance(ours[f"{score}_published"], float)


@pytest.mark.timeout(PATIENCE)
def test_a_small_case_of_the_privacy_figure_runs(tmp_path: Path) -> None:
    """Three clients share samples, and each has a ledger of its own."""
    needs("opacus", "needs the extra dp")
    real_data("uci-har")
    small = ["--set=rounds=1", "--set=data.clients=3", "--set=fleet.0.clients=3", "--set=fleet.0.agents=3"]
    few = ["--set=data.partition.per_class=40", "--set=data.public.samples=100"]
    least = [*few, "--set=participation={}", "--set=training.epochs=1"]
    chosen = ["--vary=method=fedakd", "--vary=epsilon=5", "--vary=seed=1"]
    words = ("sweep", str(PRIVACY / "figure-5.4-hars.yaml"), "--out=swept", *chosen, *small, *least, "--json")
    environment = {"FEDQUILT_DATA": str(data_folder())}
    done = warm.fedquilt(*words, where=tmp_path, before=FEW_ORDERS, environment=environment, patience=PATIENCE)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    result = json.loads((tmp_path / "swept" / run["folder"] / "result.json").read_text(encoding="utf-8"))
    assert [4.9 < client["epsilon"] <= 5 for client in result["privacy"]] == 3 * [True]
