"""The accountant and a step of DP-SGD against Opacus 1.5.4 (4d0ebc8), in double-checked numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.data import golden_vectors
from tests.support.packages import needs
from torch import nn

from fedquilt_common.privacy.accountant import AccountantName, Charge, epsilon_of, solve_noise
from fedquilt_common.privacy.meter import PrivateSteps

needs("opacus", "needs the extra dp")  # slow to load: its users are imported in the tests
GOLDEN: Any = golden_vectors("i_dp_sgd.json")
ACCOUNTANTS: tuple[AccountantName, AccountantName] = ("rdp", "prv")
NOISE = GOLDEN["noise_multiplier_for_steps"]
FAST = [case for case in NOISE if case["target_epsilon"] < 20]
"""The others take the PRV accountant seconds each."""


@pytest.mark.long
@pytest.mark.parametrize("case", NOISE[::5])
def test_the_noise_of_a_budget_with_rdp(case: Any) -> None:
    found = solve_noise([], case["target_epsilon"], case["delta"], case["sample_rate"], case["steps"], "rdp")
    assert found == pytest.approx(case["rdp"], rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("case", FAST[::12])
def test_the_noise_of_a_budget_with_prv(case: Any) -> None:
    found = solve_noise([], case["target_epsilon"], case["delta"], case["sample_rate"], case["steps"], "prv")
    assert found == pytest.approx(case["prv"], rel=1e-6)


@pytest.mark.parametrize("case", GOLDEN["epsilon_forward"])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_epsilon_of_steps(case: Any, accountant: AccountantName) -> None:
    charge = Charge(case["sigma"], case["sample_rate"], case["steps"])
    close = 1e-8 if accountant == "prv" else 1e-9  # PRV uses Fourier transforms, which processors round differently
    assert epsilon_of([charge], case["delta"], accountant) == pytest.approx(case[f"eps_{accountant}"], rel=close)


def test_the_epsilon_of_a_history() -> None:
    case = GOLDEN["composition"]
    charges = [Charge(*entry) for entry in case["history"]]
    assert epsilon_of(charges, case["delta"], "rdp") == pytest.approx(case["eps_rdp"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("one_step")])
def test_a_step_without_noise(name: str) -> None:
    from fedquilt_common.training.private_gradients import PrivateGradients

    case = GOLDEN[name]
    model = nn.Linear(3, 2).train()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -0.2, 0.3], [0.0, 0.4, -0.1]]))
        model.bias.copy_(torch.tensor([0.05, -0.05]))
    steps = PrivateSteps(0.0, case["C"], 1.0, 1, case["expected_batch_size"], np.random.default_rng(0))
    private = PrivateGradients(model, list(model.parameters()), steps)
    with private:
        loss = nn.functional.cross_entropy(model(torch.tensor(case["x"])), torch.tensor(case["y"]))
        private.add(loss, 4)
        private.finish(None)
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(case["lr"] * parameter.grad)
    np.testing.assert_allclose(model.weight.detach(), case["weight_after"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.bias.detach(), case["bias_after"], rtol=0, atol=1e-6)
