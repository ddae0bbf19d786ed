"""The experiments in deploy/, without boards: the tasks of each, and the bytes that they send."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.generated import GENERATED
from tests.support.published import MADE
from tests.support.ready import ready_experiments

from fedquilt_common.algorithm_api import Task
from fedquilt_common.datasets import DATASETS
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.submodels.patch_layout import patch_size
from fedquilt_common.types import ClientId, Profile
from fedquilt_server.coordinator.publications import PublicationPlan, plan_publications
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.machine_setup import check_algorithm
from fedquilt_server.runs.run import ActiveRun

EXPERIMENTS = ready_experiments()
SLICED = ("heterofl", "fedrolex", "federated-dropout", "adaptivefl", "scalefl")
EXACT = ("heterofl", "fedrolex", "adaptivefl", "scalefl")
"""Algorithms by which a board is sent its sub-model and nothing else."""


def fleet_of(experiment: Experiment) -> Mapping[ClientId, Profile]:
    return {client: Profile(kind=spec.kind) for spec in agent_specs(experiment.fleet) for client in spec.clients}


def tasks_of(bench: Workbench, round: int) -> tuple[Mapping[ClientId, Task], int]:
    """(tasks of the first exchange of ``round``, entries of the global model)."""
    experiment = bench.experiment
    part = experiment.participation
    lab = RoundContext(
        round, fleet_of(experiment), experiment.seed, experiment.rounds, experiment.data.clients, part.per_round,
        bench,
    )  # fmt: skip
    algorithm = check_algorithm(bench, Path())
    state = algorithm.init(bench.first_model(), lab)
    return next(algorithm.round(state, lab)), sum(x.size for x in state.arrays.values())


def sizes(made: PublicationPlan, whole: int) -> list[int]:
    return [
        4 * whole if one.patch is None else patch_size(one.patch, made.slices[0].part.anatomy.arrays, "fp32")
        for one in made.patches
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small data sets."""
    folder = tmp_path_factory.mktemp("data")
    for write in MADE.values():
        write(folder)
    return folder


@functools.cache
def bench_of_digits(name: str) -> Workbench:
    return Workbench(load_experiment(next(path for path in EXPERIMENTS if path.stem == f"digits-{name}")))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_it_can_begin(path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small generated data; ``unit/common/datasets`` reads the real files."""
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    if experiment.model.name == "yolov8n":
        pytest.importorskip("ultralytics", reason="needs ultralytics: pip install 'fedquilt[vision]'")
    if experiment.data.set in GENERATED:
        monkeypatch.setitem(DATASETS, experiment.data.set, GENERATED[experiment.data.set])
        monkeypatch.setattr("fedquilt_common.datasets.UNPREPARED", {experiment.data.set})
    monkeypatch.setenv("FEDQUILT_DATA", str(data))
    tasks, _ = tasks_of(Workbench(experiment), 1)
    assert len(tasks) == experiment.participation.per_round


@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize("round", [1, 9, 300])
def test_a_round_sends_no_more_than_one_model_and_each_board_its_own_part(name: str, round: int) -> None:
    bench = bench_of_digits(name)
    assert bench.experiment.data.clients == 20
    tasks, whole = tasks_of(bench, round)
    made = plan_publications(tasks)
    published = sizes(made, whole)
    assert sum(published) <= 4 * whole
    for group in made.groups:
        assert group.task.slice is not None
        received = sum(published[place] for place in group.patches)
        own = 4 * group.task.slice.entries
        assert received == own if name in EXACT else received >= own


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "digits-fedreb",
            "algorithm.head_layers=3",
            "algorithm.head_layers = 3: at most the last 2 linear layers of this model",
        ),
        ("digits-fedper", "model.hidden=[]", "algorithm.head_layers = 1: this model has no head"),
        ("digits-ditto", "algorithm.lambda=0", "algorithm.lambda = 0: lambda must be a positive number"),
        ("digits-ditto", "algorithm.lambda=-1", "algorithm.lambda = -1: lambda must be a positive number"),
        ("digits-ditto", "algorithm={name: ditto}", "algorithm.lambda"),
        ("digits-ditto", "algorithm.lamda=1", "algorithm.lamda = 1: unknown field; did you mean 'lambda'?"),
        ("digits-ditto", "algorithm.lambda=much", "algorithm.lambda = 'much'"),
        ("digits-fedprox", "algorithm.mu=0", "algorithm.mu = 0: mu must be a positive number"),
        ("digits-fedprox", "algorithm={name: fedprox}", "algorithm.mu"),
        ("digits-feddyn", "algorithm.alpha=0", "algorithm.alpha = 0: alpha must be a positive number"),
        ("digits-fedreb", "algorithm.threshold=0", "algorithm.threshold = 0: must be mean, median"),
        ("digits-fedreb", "algorithm.threshold=mode", "algorithm.threshold"),
        ("digits-fedavg", "data.mixed=true", "data.mixed = True: the official test samples are shared out"),
        ("digits-feddf", "data.holdout=0.25", "data.holdout = 0.25: 'feddf' is evaluated by the coordinator"),
        ("digits-heterofl", "data={set: digits, clients: 20, mixed: true, holdout: 0.25}", "data.mixed = True"),
        ("digits-feddf", "data.local_test=own-labels", "data.local_test = own-labels: 'feddf' is evaluated by"),
        ("digits-fedavg", "data={set: digits, clients: 8, local_test: own-labels, holdout: 0.2}", "data.holdout = 0.2"),
        ("digits-heterofl", "fleet=[{kind: strong, clients: 20, budget: 1MiB}]", "fleet.0.budget: with 'heterofl'"),
        ("digits-fedreb", "data.holdout=1.0", "data.holdout = 1.0: must be below 1"),
        ("digits-fedreb", "data.partition.shares=5", "data.partition.shares = 5: there are 20 clients"),
        ("digits-fedreb", "data.partition.alpha=null", "the scheme 'dirichlet-per-class' needs it"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_round(
    name: str, change: str, reason: str, tmp_path: Path
) -> None:
    path = next(path for path in EXPERIMENTS if path.stem == name)
    with pytest.raises(ExperimentError, match=re.escape(reason)):
        ActiveRun(load_experiment(path, [change]), tmp_path / "run", resume=False)
