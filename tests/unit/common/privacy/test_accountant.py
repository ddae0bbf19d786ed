"""What a machine without Opacus reports, and what is computed once; ``test_privacy_golden.py`` compares the numbers."""

from __future__ import annotations

import itertools
import math
import sys
import tracemalloc

import pytest

from fedquilt_common.errors import PackageMissingError, PrivacyBudgetError
from fedquilt_common.privacy import accountant
from fedquilt_common.privacy.accountant import Charge, epsilon_of, find_noise, solve_noise


def test_without_opacus_the_error_explains_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(PackageMissingError, match=r"'fedquilt\[dp\]'.*a board .*fedquilt upgrade.* build the image"):
        epsilon_of([Charge(1.0, 0.1, 10)], 1e-5, "rdp")


def test_steps_that_were_counted_once_cost_no_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task counts the steps of all earlier tasks, and the search for its noise counts them a dozen times."""
    rdp = pytest.importorskip("opacus.accountants.analysis.rdp", reason="needs the extra dp")
    first, computed = epsilon_of([Charge(1.25, 0.1, 10)], 1e-5, "rdp"), list[float]()
    compute = rdp.compute_rdp

    def count(**fields: float) -> object:
        computed.append(fields["noise_multiplier"])
        return compute(**fields)

    monkeypatch.setattr(rdp, "compute_rdp", count)
    assert epsilon_of([Charge(1.25, 0.1, 10)], 1e-5, "rdp") == first
    assert epsilon_of([Charge(1.25, 0.1, 30), Charge(1.75, 0.1, 10)], 1e-5, "rdp") > first
    assert computed == [1.75]


def test_the_search_for_noise_ends_where_epsilon_jumps() -> None:
    """As the accountant ``prv`` does: it returns infinity from an epsilon of about 700 on."""
    tries = itertools.count()

    def epsilon_with(noise: float) -> float:
        assert next(tries) < 100
        return 5 / noise if noise > 0.01 else math.inf

    assert find_noise(epsilon_with, 1000.0) == pytest.approx(0.01)


@pytest.mark.parametrize(("needed", "found"), [(700.0, 700.0), (1000.0, 1000.0), (1001.0, None)])
def test_the_search_for_noise_tries_up_to_the_largest(needed: float, found: float | None) -> None:
    noise = find_noise(lambda noise: needed / noise, 1.0)
    assert noise == (found if found is None else pytest.approx(found, rel=0.01))


@pytest.mark.parametrize(
    ("epsilon", "steps", "advice"),
    [
        (0.08, 1, r"rdp counts 0\.10\d* for even one step. Choose prv, which is tighter, or a larger privacy\.epsilon"),
        (8.0, 10**9, r"choose a larger privacy\.epsilon, or fewer rounds"),
    ],
)
def test_what_helps_against_a_budget_that_is_too_small(epsilon: float, steps: int, advice: str) -> None:
    with pytest.raises(PrivacyBudgetError, match=advice):
        solve_noise([], epsilon, 1e-5, 1.0, steps, "rdp")


def test_an_epsilon_that_protects_nothing_takes_no_memory() -> None:
    """Its grid would have 16 million points and take 3 GB."""
    pytest.importorskip("opacus", reason="needs the extra dp")
    tracemalloc.start()
    try:
        assert epsilon_of([Charge(0.3, 0.05, 2000)], 1e-5, "prv") == math.inf
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert epsilon_of([Charge(0.6, 0.05, 2000)], 1e-5, "prv") == pytest.approx(55.406, abs=1e-3)


def test_epsilon_is_never_below_zero() -> None:
    pytest.importorskip("opacus", reason="needs the extra dp")
    assert epsilon_of([Charge(1000.0, 0.01, 1)], 0.6, "rdp") == 0.0


def test_noise_that_only_the_memory_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would train with more noise than its budget needs, and nothing would say so."""
    pytest.importorskip("opacus", reason="needs the extra dp")
    monkeypatch.setattr(accountant, "LARGEST_GRID", 60_000)
    with pytest.raises(PrivacyBudgetError, match=r"prv cannot count 100 steps up to epsilon 20 within .*; choose rdp"):
        solve_noise([], 20.0, 1e-5, 0.1, 100, "prv")
    assert solve_noise([], 1.0, 1e-5, 0.1, 100, "prv") > 1
