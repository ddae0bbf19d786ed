"""docs/experiments.md: its example files are valid, and its example of errors is what fedquilt prints.

The files in deploy/experiments/ are valid, too.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from tests.support.ready import ready_experiments, ready_files, ready_sweeps
from tests.support.tables import each

from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import agent_specs
from fedquilt_common.experiment_file import load_experiment, parse_experiment
from fedquilt_server.report.published import read_published
from fedquilt_server.sweep.plan import SweepPlan, plan_sweep
from fedquilt_server.sweep.sweep_file import SweepSource, read_source

ROOT = Path(__file__).parents[3]
READY = ready_experiments()
PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
FILES, ERRORS = PAGE.split("## Errors")


@functools.cache
def planned(name: str) -> tuple[SweepSource, SweepPlan]:
    """Return the ready sweep of a name, planned once for all tests."""
    (path,) = [path for path in ready_sweeps() if path.stem == name]
    source = read_source(path)
    return source, plan_sweep(source)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["digits-small", "digits-fedprox"])
def test_the_example_files_are_valid(name: str) -> None:
    (text,) = [block for block in blocks(FILES, "yaml") if block.startswith(f"name: {name}\n")]
    assert parse_experiment(text, "page").name == name


@pytest.mark.parametrize(
    ("name", "runs", "figures"),
    [
        ("table-5", 8 * 2 * 2 * 3, 32),
        ("table-6", 8 * 2 * 3, 16),
        ("table-7", 6 * 3 * 3, 18),
        ("table-8", 8 * 4 * 3, 16),
    ],
)
def test_the_sweeps_of_the_papers_tables_are_valid(name: str, runs: int, figures: int) -> None:
    source, plan = planned(name)
    assert len(plan.runs) == runs
    assert [len(table.figures) for table in source.published] == [figures]


@pytest.mark.parametrize(
    ("name", "each_budget", "algorithms"),
    [
        ("figure-5.4-hars", 3 * 3, {"fedavg", "fedmd", "fedakd"}),
        ("figures-5.5-5.6-hars", 3 * 2 * 3, {"fedavg-weighted", "fedmd", "fedakd"}),
    ],
)
def test_the_sweeps_of_the_privacy_figures_are_valid(name: str, each_budget: int, algorithms: set[str]) -> None:
    """The FedAKD thesis: three methods, three budgets and three seeds; figures 5.5 and 5.6 have two weights, too."""
    experiments = [run.experiment for run in planned(name)[1].runs]
    budgets = [each.privacy.epsilon if each.privacy else None for each in experiments]
    assert sorted(map(str, budgets)) == sorted(each_budget * ["20.0", "5.0", "None"])
    assert {each.algorithm.name for each in experiments} == algorithms
    assert all(len(agent_specs(each.fleet)) == each.data.clients for each in experiments)  # a ledger for each client


@pytest.mark.parametrize(
    ("name", "runs", "algorithms"),
    [
        ("figures-4.5-4.6", 4 * (3 * 2 + 1) * 3, {"fedavg-weighted", "fedmd", "fedakd"}),
        ("figures-4.7-4.8", 4 * 3 * 3, {"fedmd", "fedakd", "cfedakd"}),
        ("figures-4.11-4.13", 4 * (1 + 2 * 5) * 3, {"fedavg-weighted", "fedmd", "fedakd"}),
        ("table-3.5-harb", 3 * 2 * 3, {"alone", "fedmd", "fedakd"}),
        ("suspects-hars", 5 * 14 * 3, {"alone", "fedmd", "fedakd"}),
    ],
)
def test_the_sweeps_of_the_fedakd_thesis_are_valid(name: str, runs: int, algorithms: set[str]) -> None:
    """Each algorithm accepts the fields that a run gives it."""
    experiments = [run.experiment for run in planned(name)[1].runs]
    assert len(experiments) == runs
    assert {type(make_algorithm(each.algorithm.name, each.algorithm.fields, ())) for each in experiments} == {
        ALGORITHMS[name] for name in algorithms
    }


def test_all_clients_models_start_as_keras_would_in_the_suspect_of_that_name() -> None:
    for run in planned("suspects-hars")[1].runs:
        starts = {variant.model.initialisation for variant in run.experiment.variants}
        assert starts == {
            "keras" if dict(run.variation.settings)["setting"] in ("keras", "keras-initialisation") else "torch"
        }


def test_the_ready_files_are_experiments_sweeps_or_figures() -> None:
    named = {*READY, *ready_sweeps()}
    others = [path for path in ready_files() if path not in named]
    assert [path.stem for path in others] == ["table-5-central"]
    assert [len(table.figures) for table in read_published(others[0])] == [8]


@each(READY, lambda path: path.stem)
def test_the_ready_files_are_valid_and_named_like_their_experiments(path: Path) -> None:
    assert load_experiment(path).name == path.stem


def test_the_example_of_errors_is_what_is_printed() -> None:
    file = blocks(ERRORS, "yaml")[0]
    printed = ERRORS.split("`fedquilt simulate bad.yaml` prints\n\n```\n")[1].split("```")[0]
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(file, "bad.yaml")
    assert f"fedquilt: {caught.value}\n" == printed
