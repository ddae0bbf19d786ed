"""A coordinator that ends before its run, as when a user's code calls ``sys.exit``, is no success."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.errors import RunFailedError
from fedquilt_server.runs.result_files import read_result, record_ending
from fedquilt_server.simulate.plan import SimulationPlan, make_plan
from fedquilt_server.simulate.simulate import read_ended, read_finished_rounds
from fedquilt_server.status.results import RUNNING, Ending, RoundResult
from fedquilt_server.tools.bench import bench_experiment


def plan_ended(folder: Path, ending: Ending) -> SimulationPlan:
    """Return a plan whose coordinator has recorded how its run ended."""
    plan = make_plan(bench_experiment(1, 1, 0.01, 1), folder)
    record_ending(folder, plan.experiment, ending)
    return plan


def test_a_coordinator_that_ended_before_its_run_is_an_error(tmp_path: Path) -> None:
    plan = plan_ended(tmp_path, RUNNING)
    with pytest.raises(
        RunFailedError, match=r"ended after round 0 of \d+, before its run was finished; read its log, .*"
    ):
        read_ended(plan)
    assert read_result(tmp_path).status == "failed"


def test_a_run_that_somebody_stopped_is_none(tmp_path: Path) -> None:
    assert read_ended(plan_ended(tmp_path, Ending(status="stopped", reason="x", exit_code=0))).status == "stopped"


@pytest.mark.parametrize("rounds", [0, 2])
def test_the_rounds_that_an_earlier_process_has_shown_are_counted(rounds: int, tmp_path: Path) -> None:
    assert len(read_finished_rounds(tmp_path)) == 0
    plan_ended(tmp_path, Ending(status="stopped", reason="x", exit_code=0))
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    rows = [RoundResult.model_validate({**zeros, "round": number}) for number in range(1, rounds + 1)]
    result = read_result(tmp_path).model_copy(update={"rounds": rows})
    (tmp_path / "result.json").write_text(result.model_dump_json())
    assert len(read_finished_rounds(tmp_path)) == rounds
