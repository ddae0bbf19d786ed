"""What fits a client by its line of the fleet: levels by name, schedules, and noise from the run's seed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedquilt_client.context import BoardRun, TaskContext
from fedquilt_client.uncertain_resources import draw_factor
from fedquilt_common.algorithms.adaptivefl import AdaptiveFL
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_common.experiment.sections import FleetLine
from fedquilt_common.submodels.adaptivefl_pool import make_pool
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.wire.messages import RunMessage

MIB = 1 << 20


def context(round: int = 1, capacity: int = 1 << 40, **line: Any) -> TaskContext:
    raw = {"name": "x", "seed": 3, "data": {"set": "digits", "clients": 4},
           "model": {"name": "mlp", "hidden": [64, 64, 32]}, "fleet": [{"clients": 4, **line}],
           "algorithm": {"name": "adaptivefl", "starts": [2, 1]}}  # fmt: skip
    board = BoardRun(RunMessage(run="x", experiment={}), Experiment.model_validate(raw), ())
    return TaskContext(board, 1, round, 0, None, lambda: capacity, lambda part: None, lambda need: None)


def fitting(ctx: TaskContext) -> list[str]:
    pool = make_pool(ctx.anatomy, {"M": 0.66, "S": 0.4}, (2, 1))
    return [member.name for member in pool if ctx.fits(member.part)]


def test_a_level_fits_with_all_that_are_smaller_whatever_the_memory_estimate_says() -> None:
    assert fitting(context()) == ["S2", "M2", "S1", "M1", "L1"]
    assert fitting(context(fits="M1")) == ["S2", "M2", "S1", "M1"]
    assert fitting(context(fits="M1", capacity=1)) == []


def test_a_task_makes_the_pool_of_levels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    usual = AdaptiveFL.find_level

    def find_level(algorithm: AdaptiveFL, name: str, ctx: Any) -> Slice:
        names.append(name)
        return usual(algorithm, name, ctx)

    monkeypatch.setattr(AdaptiveFL, "find_level", find_level)
    assert len(fitting(context(fits="M1"))) == 4
    assert names == ["M1"]


def test_levels_and_budgets_follow_their_schedule() -> None:
    assert [fitting(context(round, fits=["M1", "S2"]))[-1] for round in (1, 2, 3)] == ["M1", "S2", "M1"]
    found = [len(fitting(context(round, budget=["1GiB", "1MiB"]))) for round in (1, 2, 3)]
    assert found == [5, 0, 5]


def test_noise_depends_on_the_seed_the_round_and_the_client_only() -> None:
    line = FleetLine.model_validate({"clients": 4, "fits": "M1", "uncertainty": 0.3})
    places = [(seed, round, client) for seed in (1, 2) for round in (1, 2) for client in (0, 1)]
    factors = [draw_factor(line, *place) for place in places]
    assert len(set(factors)) == 8
    assert factors == [
        draw_factor(line, seed, round, client) for seed in (1, 2) for round in (1, 2) for client in (0, 1)
    ]
    many = [draw_factor(line, 1, round, 0) for round in range(400)]
    assert sum(many) / 400 == pytest.approx(1, abs=0.05)
    wide = line.model_copy(update={"uncertainty": 5.0})
    assert min(draw_factor(wide, 1, round, 0) for round in range(50)) == 0
    levels = {tuple(fitting(context(round, fits="S1", uncertainty=0.4))) for round in range(1, 9)}
    assert len(levels) > 1


def test_only_a_budget_that_never_changes_is_the_agents_own() -> None:
    lines = [{"clients": 1, "budget": "8MiB"}, {"clients": 1, "budget": ["8MiB", "9MiB"]},
             {"clients": 1, "budget": "8MiB", "uncertainty": 0.1}]  # fmt: skip
    options = [spec.options.get("budget") for spec in agent_specs([FleetLine.model_validate(line) for line in lines])]
    assert options == [str(8 * MIB), None, None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"budget": "8MiB", "fits": "M1"}, "budget is given, too"),
        ({"uncertainty": 0.1}, "set budget or fits"),
        ({"fits": []}, "at least 1"),
        ({"budget": [1]}, "must be at least 1MiB"),
    ],
)
def test_contradictory_lines_are_refused(line: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        FleetLine.model_validate({"clients": 1, **line})
