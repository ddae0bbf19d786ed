"""The accountant of rounds with a noisy mean, against Google's dp-accounting 0.6.0 and a closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.errors import PrivacyBudgetError
from fedquilt_common.privacy.central_accountant import (
    SENSITIVITY,
    NoisyRounds,
    central_epsilon,
    solve_central_noise,
)

# dp_accounting.rdp.RdpAccountant(orders=range(2, 257), neighboring_relation=REPLACE_ONE) with
# SelfComposedDpEvent(SampledWithoutReplacementDpEvent(clients, asked, GaussianDpEvent(noise / 2)), rounds)
PUBLISHED = [
    (NoisyRounds(2.0, 10, 100, 30), 1e-5, 7.57730910363398),
    (NoisyRounds(1.6, 5, 50, 20), 1e-4, 7.727736025068106),
    (NoisyRounds(2.0, 100, 10_000, 1000), 1e-6, 4.0212080917779724),
]


@pytest.mark.parametrize(("rounds", "delta", "epsilon"), PUBLISHED)
def test_epsilon_is_that_of_dp_accounting(rounds: NoisyRounds, delta: float, epsilon: float) -> None:
    assert central_epsilon([rounds], delta) == pytest.approx(epsilon, rel=1e-9)


def test_without_sampling_it_is_the_gaussian_mechanism() -> None:
    """Each order has the divergence order / (2 noise^2); the best order is found here among finer ones."""
    rounds, delta = NoisyRounds(6.0, 20, 20, 10), 1e-5
    noise = 6.0 / SENSITIVITY
    orders = [1 + step / 1000 for step in range(200, 100_000)]
    exact = min(10 * a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)
    assert exact <= central_epsilon([rounds], delta) <= 1.01 * exact


@given(st.floats(0.5, 20), st.integers(1, 49), st.integers(1, 40))
def test_more_clients_among_which_to_draw_never_cost_more(noise: float, asked: int, rounds: int) -> None:
    among = [central_epsilon([NoisyRounds(noise, asked, clients, rounds)], 1e-5) for clients in (asked, 50, 5000)]
    assert among == sorted(among, reverse=True)


@given(st.lists(st.tuples(st.floats(1, 10), st.integers(1, 20)), max_size=6))
def test_rounds_add_up_in_any_order(kinds: list[tuple[float, int]]) -> None:
    rounds = [NoisyRounds(noise, 5, 20, count) for noise, count in kinds]
    single = [NoisyRounds(noise, 5, 20) for noise, count in reversed(kinds) for _ in range(count)]
    assert central_epsilon(rounds, 1e-4) == pytest.approx(central_epsilon(single, 1e-4), rel=1e-9)


@pytest.mark.parametrize("spent", [[], [NoisyRounds(4.0, 10, 50, 5)]])
def test_the_noise_uses_up_the_budget(spent: list[NoisyRounds]) -> None:
    ahead = NoisyRounds(0, 10, 100, 20)
    noise = solve_central_noise(spent, 12.0, 1e-5, ahead)
    assert 11.98 < central_epsilon([*spent, NoisyRounds(noise, 10, 100, 20)], 1e-5) <= 12.0


def test_a_budget_that_is_used_up_says_so() -> None:
    with pytest.raises(PrivacyBudgetError, match=r"choose a larger privacy\.epsilon, or fewer rounds"):
        solve_central_noise([NoisyRounds(2.0, 10, 100, 30)], 7.0, 1e-5, NoisyRounds(0, 10, 100, 5))
