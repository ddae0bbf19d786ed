"""Learning rates from round to round, compared with torch's schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, MultiStepLR

from fedquilt_common.experiment.training_section import Training

ROUNDS = 100


def rates(training: Training) -> list[float]:
    return [training.at_round(round).lr for round in range(1, ROUNDS + 1)]


def torch_rates(lr: float, make: Callable[[Any], LRScheduler]) -> list[float]:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, found = make(optimiser), []
    for _ in range(ROUNDS):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def scheduled(lr: float = 0.1, **schedule: object) -> Training:
    return Training.model_validate({"lr": lr, "schedule": schedule})


@pytest.mark.parametrize(("milestones", "gamma"), [([1], 0.1), ([30, 80], 0.1), ([5, 6, 7, 99], 0.7), ([200], 0.5)])
def test_multi_step_is_torchs(milestones: list[int], gamma: float) -> None:
    made = scheduled(kind="multi-step", milestones=milestones, gamma=gamma)
    assert rates(made) == torch_rates(0.1, lambda optimiser: MultiStepLR(optimiser, milestones, gamma))


def test_multi_step_has_torchs_default_factor() -> None:
    assert rates(scheduled(kind="multi-step", milestones=[10])) == torch_rates(0.1, lambda o: MultiStepLR(o, [10]))


@pytest.mark.parametrize(("period", "multiplier"), [(1, 1), (7, 1), (10, 2), (1, 2), (3, 3), (200, 2)])
@pytest.mark.parametrize("minimum", [0.0, 0.01])
def test_cosine_is_torchs(period: int, multiplier: int, minimum: float) -> None:
    made = scheduled(kind="cosine", period=period, multiplier=multiplier, minimum=minimum)
    expected = torch_rates(0.1, lambda o: CosineAnnealingWarmRestarts(o, period, multiplier, minimum))
    assert rates(made) == expected


def test_the_learning_rate_decays_round_by_round() -> None:
    asked = Training(lr=0.1, lr_decay=0.5, epochs=3)
    assert [asked.at_round(round).lr for round in (1, 2, 3)] == [0.1, 0.05, 0.025]
    assert asked.at_round(3) == Training(lr=0.025, epochs=3)
    assert Training(lr=0.1).at_round(100) == Training(lr=0.1)


def test_a_round_has_no_schedule_of_its_own() -> None:
    assert scheduled(kind="multi-step", milestones=[2], gamma=0.5).at_round(3) == Training(lr=0.05)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"schedule": {"kind": "cosine"}}, "needs it; try 10"),
        ({"schedule": {"kind": "multi-step"}}, r"needs it; try \[100, 150\]"),
        ({"schedule": {"kind": "cosine", "period": 3, "gamma": 0.1}}, "'cosine' does not use it"),
        ({"schedule": {"kind": "multi-step", "milestones": [3, 3]}}, "above the one before"),
        ({"schedule": {"kind": "cosine", "period": 3, "minimum": 0.05}}, "choose a smaller minimum"),
        ({"schedule": {"kind": "cosine", "period": 3}, "lr_decay": 0.9}, "remove one of the two"),
    ],
)
def test_a_contradiction_is_an_error(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training.model_validate({"lr": 0.05, **keys})
