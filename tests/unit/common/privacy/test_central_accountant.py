"""The accountant of rounds with a noisy mean, against Google's dp-accounting 0.6.0 and a closed form."""

from __future__ import annotations

import math

import numpy as np
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


@pytest.mark.parametrize(
    "rounds", [[NoisyRounds(6.0, 20, 20, 10)], [NoisyRounds(4.0, 20, 20, 3), NoisyRounds(9.0, 5, 5)]]
)
def test_without_sampling_it_is_the_gaussian_mechanism_to_the_digit(rounds: list[NoisyRounds]) -> None:
    """delta is the integral of how much the density exceeds exp(epsilon) times that of the neighbour."""
    delta, shift = 1e-5, math.sqrt(sum(one.rounds * (SENSITIVITY / one.noise) ** 2 for one in rounds))
    epsilon = central_epsilon(rounds, delta)
    x, width = np.linspace(-12, 12 + shift, 400_001, retstep=True)
    density = (np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (shift, 0.0))
    mine, others = density
    assert float(np.maximum(mine - math.exp(epsilon) * others, 0).sum() * width) == pytest.approx(delta, rel=1e-6)


def test_rounds_that_ask_nearly_all_clients_cost_no_more_than_for_those_who_know_who_was_asked() -> None:
    all_asked = central_epsilon([NoisyRounds(6.0, 20, 20, 10)], 1e-5)
    assert central_epsilon([NoisyRounds(6.0, 20, 21, 10)], 1e-5) == all_asked


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
