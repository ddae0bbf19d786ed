"""Groups of runs over seeds, their means and curves, against numbers that were computed by hand."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recorded_runs import make_experiment, make_round, make_rounds, near, write_run

from fedquilt_server.library.recorded_run import RecordedRun, name_runs, read_run
from fedquilt_server.report.charts import MOST_POINTS, thin_out
from fedquilt_server.report.group_tables import cost_table
from fedquilt_server.report.groups import (
    CurvePoint,
    RunGroup,
    average_curve,
    drop_copies,
    group_runs,
    pick_target,
    repeated_seeds,
)
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.status.results import Result


def make_run(accuracies: list[float | None], seed: int = 1, algorithm: str = "fedavg", **settings: Any) -> RecordedRun:
    name = f"{algorithm}-{seed}"
    known = {"name": "digits", "run": name, "algorithm": algorithm, "dataset": "digits", "seed": seed}
    result = Result.model_validate({**known, "status": "finished", "rounds": make_rounds(accuracies)})
    experiment = make_experiment(algorithm, seed, len(accuracies), **settings)
    return RecordedRun(Path(name), name, "finished", result=result, settings=experiment)


def only_group(*runs: RecordedRun) -> RunGroup:
    groups = group_runs(runs)
    assert len(groups) == 1
    return groups[0]


def test_runs_that_differ_in_seed_and_name_only_are_one_group() -> None:
    runs = [make_run([0.5], 2), make_run([0.7], 1, name="other"), make_run([0.5], 1, "fedprox")]
    groups = group_runs(runs)
    assert [(group.name, group.seeds) for group in groups] == [("fedavg", [1, 2]), ("fedprox", [1])]


def test_unfinished_runs_are_in_no_group() -> None:
    whole, part = make_run([0.5], 1), make_run([0.5], 2)
    failed = RecordedRun(part.folder, "b", "failed", "why", part.result, part.settings)
    assert only_group(whole, failed).runs == (whole,)
    assert group_runs([failed]) == []


def test_runs_without_settings_are_not_mixed_with_others() -> None:
    known = make_run([0.5], 1)
    unknown = RecordedRun(Path("b"), "b", "finished", result=make_run([0.9], 2).result)
    groups = group_runs([known, unknown])
    assert [len(group.runs) for group in groups] == [1, 1]
    assert len({group.name for group in groups}) == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([0.1, 0.2])), max_size=12))
def test_every_finished_run_is_in_exactly_one_group(cases: list[tuple[int, str, float]]) -> None:
    runs = [make_run([0.5], seed, name, training={"lr": lr}) for seed, name, lr in cases]
    groups = group_runs(runs)
    assert sorted(id(run) for group in groups for run in group.runs) == sorted(map(id, runs))
    assert len(groups) == len({(name, lr) for _, name, lr in cases})
    assert len({group.name for group in groups}) == len(groups)


def test_scores_and_costs_over_the_runs() -> None:
    group = only_group(make_run([0.5, 0.9, 0.8], 1), make_run([0.4, 0.6, 0.6], 2))
    deviation = math.sqrt(2 * 0.1**2)
    assert group.last("accuracy") == MeanDeviation(near(0.7), near(deviation), 2)
    assert group.best("accuracy") == MeanDeviation(near(0.75), near(1.5 * deviation), 2)
    assert group.total("seconds") == MeanDeviation(6.0, 0.0, 2)
    assert group.total("joules") is None
    assert [found.round for found in group.targets("accuracy", 0.7)] == [2]


def test_a_curve_has_a_point_for_each_round_that_all_runs_evaluated() -> None:
    group = only_group(make_run([0.5, None, 0.8], 1), make_run([0.7, 0.9, 0.8], 2))
    points = average_curve(group, "accuracy")
    assert [(point.round, point.score.mean, point.score.n) for point in points] == [(1, 0.6, 2), (3, 0.8, 2)]
    assert points[0].score.deviation == near(math.sqrt(0.02))
    assert [point.costs for point in points] == [
        {"seconds": 2.0, "bytes": 3000.0, "joules": None}, {"seconds": 6.0, "bytes": 9000.0, "joules": None},
    ]  # fmt: skip


def test_costs_of_a_curve_are_means_over_the_runs() -> None:
    first, second = make_run([0.5, 0.6], 1), make_run([0.5, 0.6], 2)
    assert second.result is not None
    slow = second.result.model_copy(update={"rounds": [make_round(n, 0.5, seconds=4.0) for n in (1, 2)]})
    group = only_group(first, RecordedRun(second.folder, "b", "finished", result=slow, settings=second.settings))
    assert [point.costs["seconds"] for point in average_curve(group, "accuracy")] == [3.0, 6.0]


def test_a_curve_has_no_costs_that_only_some_runs_recorded() -> None:
    runs = [make_run([0.5], 1), make_run([0.5], 2)]
    for run, joules in zip(runs, (20.0, None), strict=True):
        assert run.result is not None
        run.result.rounds[:] = [make_round(1, 0.5, joules=joules)]
    (point,) = average_curve(only_group(*runs), "accuracy")
    assert point.costs == {"seconds": 2.0, "bytes": 3000.0, "joules": None}


def test_the_time_per_round_is_that_of_each_runs_own_rounds() -> None:
    """A run may end before its last round, such as one that has reached its budget."""
    table = cost_table([RunGroup("fedavg", {}, (make_run([0.5] * 5, 1), make_run([0.5] * 10, 2)))])
    (row,) = ({column.key: cell for column, cell in zip(table.columns, row, strict=True)} for row in table.rows)
    assert (row["rounds"], row["seconds"]) == ("5/10", MeanDeviation(15.0, near(math.sqrt(50)), 2))
    assert row["seconds_per_round"] == MeanDeviation(2.0, 0.0, 2)


@pytest.mark.parametrize(
    ("best", "target"), [([0.93, 0.71], 0.7), ([0.7, 0.7], 0.7), ([0.05], 0.05), ([0.04], None), ([1.0], 1.0)]
)
def test_the_default_target_is_a_step_that_every_run_reached(best: list[float], target: float | None) -> None:
    runs = [make_run([value, 0.01], seed) for seed, value in enumerate(best)]
    assert pick_target(group_runs(runs), "accuracy") == target


def test_runs_of_two_data_sets_have_no_default_target() -> None:
    runs = [make_run([0.9], data={"set": name}) for name in ("digits", "cifar10")]
    assert pick_target(group_runs(runs), "accuracy") is None


def test_the_default_target_of_a_loss_is_one_that_every_run_reached() -> None:
    runs = [make_run([0.5], seed) for seed in (1, 2)]
    for run, losses in zip(runs, ([2.4, 2.33], [0.9, 0.396]), strict=True):
        assert run.result is not None
        run.result.rounds[:] = [make_round(number, 0.5, loss=loss) for number, loss in enumerate(losses, 1)]
    assert pick_target(group_runs(runs), "loss") == 2.35


def test_a_repeated_seed_is_noticed() -> None:
    runs = [make_run([0.5], 1), make_run([0.5], 1), make_run([0.5], 2)]
    assert {seed: len(several) for seed, several in repeated_seeds(only_group(*runs)).items()} == {1: 2}


def test_a_run_that_is_given_twice_or_copied_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    shutil.copytree(folder, tmp_path / "b")
    runs, copies = drop_copies(name_runs([read_run(tmp_path / name) for name in ("a", "b", "a")]))
    assert [run.label for run in runs] == ["a"]
    assert copies == {"b": "a", "a": "a"}


def test_the_finished_folder_of_a_run_counts_not_a_copy_with_fewer_or_more_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "backup", (0.5, 0.6), status="running", run="one")
    write_run(tmp_path / "run", (0.5, 0.6, 0.9), run="one")
    write_run(tmp_path / "longer", (0.5, 0.6, 0.9, 0.9), status="running", run="one")
    runs, copies = drop_copies(name_runs([read_run(tmp_path / name) for name in ("backup", "run", "longer")]))
    assert [run.label for run in runs] == ["run"]
    assert copies == {"backup": "run", "longer": "run"}


@pytest.mark.parametrize("length", [1, MOST_POINTS, MOST_POINTS + 1, 7 * MOST_POINTS + 3])
def test_a_long_curve_is_drawn_with_fewer_points(length: int) -> None:
    points = [CurvePoint(number, {}, MeanDeviation(0.5, None, 1)) for number in range(length)]
    drawn = [point.round for point in thin_out(points)]
    assert (drawn[0], drawn[-1]) == (0, length - 1)
    assert len(drawn) <= MOST_POINTS + 1
    assert drawn == sorted(set(drawn))
