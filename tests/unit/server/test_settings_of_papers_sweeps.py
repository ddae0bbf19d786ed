"""The sweeps of papers' tables and figures have the boards, rounds and sizes that the texts state."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fractions import Fraction

import pytest
from tests.support.ready import FOLDER

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.sweep.plan import plan_sweep
from fedquilt_server.sweep.sweep_file import read_source

KINDS = "full", "half", "quarter", "eighth", "sixteenth"


@functools.cache
def read_runs(name: str) -> list[tuple[Mapping[str, object], Experiment]]:
    """Return the settings and the experiment of each run of a sweep."""
    runs = plan_sweep(read_source(FOLDER / f"{name}.yaml")).runs
    return [(run.variation.settings, run.experiment) for run in runs]


def boards(experiment: Experiment) -> dict[str, int]:
    return {entry.kind: entry.clients for entry in experiment.fleet}


def schedule(experiment: Experiment) -> tuple[int, ...]:
    """Return the milestones and the number of rounds."""
    assert experiment.training.schedule is not None
    return (*(experiment.training.schedule.milestones or ()), experiment.rounds)


@pytest.mark.parametrize("name", ["table-3.3", "table-3.5", "figure-3.3", "figure-3.4", "figure-3.6"])
def test_fedrolex_has_the_hyper_parameters_of_table_3_7(name: str) -> None:
    for settings, experiment in read_runs(f"fedrolex/{name}"):
        small = experiment.data.set == "cifar10"
        assert (experiment.training.batch, experiment.training.lr) == ((10, 2e-4) if small else (24, 1e-4))
        assert (experiment.training.momentum, experiment.training.weight_decay) == (0.9, 5e-4)
        case = str(settings.get("case", "cifar10-high"))
        labels = {"cifar10-high": 2, "cifar10-low": 5, "cifar100-high": 20, "cifar100-low": 50}[case]
        assert experiment.data.partition.labels == labels
        assert sum(boards(experiment).values()) == experiment.data.clients == 100


@pytest.mark.parametrize("name", ["table-3.3", "figure-3.6"])
def test_fedrolex_has_the_rounds_of_table_3_7(name: str) -> None:
    rounds = {"cifar10-high": (800, 1500, 2500), "cifar10-low": (800, 1250, 2000)}
    for settings, experiment in read_runs(f"fedrolex/{name}"):
        assert schedule(experiment) == rounds.get(str(settings["case"]), (1000, 1500, 3500))


def test_table_3_3_has_the_boards_of_figure_3_7_and_tests_on_the_clients() -> None:
    for settings, experiment in read_runs("fedrolex/table-3.3"):
        assert boards(experiment) == dict(zip(KINDS, (6, 10, 11, 18, 55), strict=True))
        assert experiment.data.local_test == "own-labels"
        assert experiment.model.params.get("width", 1.0) == (0.0625 if settings["method"] == "smallest" else 1.0)


def test_table_3_4_tests_on_the_clients() -> None:
    assert {experiment.data.local_test for _, experiment in read_runs("fedrolex/table-3.4")} == {"own-labels"}


def test_figure_3_3_has_the_rounds_of_tables_3_9_and_3_10() -> None:
    for settings, experiment in read_runs("fedrolex/figure-3.3"):
        tenths = round(10 * float(str(settings["rho"]).removeprefix("rho-")))
        assert boards(experiment).get("full", 0) == 10 * tenths
        few = (700, 1200, 1500) if 3 <= tenths <= 7 else (500, 1000, 1250)
        assert schedule(experiment) == (few if experiment.data.set == "cifar10" else (1000, 1500, 2000))
        assert ("width" in experiment.model.params) == (tenths == 0)


def test_figure_3_4_has_the_rounds_of_table_3_11() -> None:
    for settings, experiment in read_runs("fedrolex/figure-3.4"):
        gamma = int(str(settings["gamma"]).removeprefix("gamma-"))
        assert experiment.algorithm.fields["widths"] == {"board": float(Fraction(1, gamma))}
        assert schedule(experiment) == (800, 1200, 1500)


@pytest.mark.parametrize(("name", "sizes"), [("figure-4", {50, 100, 200, 500}), ("table-2-femnist", {180})])
def test_adaptivefl_draws_a_tenth_of_the_clients_and_has_boards_of_4_to_3_to_3(name: str, sizes: set[int]) -> None:
    runs = read_runs(f"adaptivefl/{name}")
    assert {experiment.data.clients for _, experiment in runs} == sizes
    for settings, experiment in runs:
        clients = experiment.data.clients
        assert experiment.participation.per_round == clients // 10
        assert boards(experiment) == {
            "strong": clients * 3 // 10,
            "medium": clients * 3 // 10,
            "weak": clients * 4 // 10,
        }
        fits = [entry.fits for entry in experiment.fleet]
        assert fits == ([None, ("M1",), ("S1",)] if settings["method"] == "adaptivefl" else [None, None, None])
