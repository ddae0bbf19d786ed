"""The privacy that rounds with a noisy mean spend, where the privacy unit is a client and a round asks a fixed number.

Two federations are neighbours if one client's samples are replaced by others. A round draws its clients without
replacement, so their number reveals nothing; the amplification by sampling is that of Wang, Balle and Kasiviswanathan,
"Subsampled Renyi Differential Privacy and Analytical Moments Accountant", AISTATS 2019, theorem 9. For somebody who
knows which clients were asked, the rounds are one Gaussian mechanism, whose epsilon is exact.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PrivacyBudgetError
from fedquilt_common.privacy.accountant import LARGEST_NOISE, find_noise

_ORDERS: Final = np.arange(2, 257)
"""Orders of the Renyi divergence; theorem 9 holds for whole ones."""
SENSITIVITY: Final = 2.0
"""How far the sum of clipped updates moves, in clipping norms, if one client is replaced."""


@dataclass(frozen=True)
class NoisyRounds:
    """Rounds of one kind.

    Attributes:
        noise: standard deviation of the noise on a sum of clipped updates, in clipping norms.
        asked: clients that a round asks.
        clients: clients among which it draws them.
        rounds: number of rounds.
    """

    noise: float
    asked: int
    clients: int
    rounds: int = 1


def central_epsilon(spent: Sequence[NoisyRounds], delta: float) -> float:
    """Return the epsilon that rounds spend together; 0 for no rounds.

    It is exact if each round asks all clients, and an upper bound otherwise.

    Args:
        spent: the rounds, in any order.
        delta: probability, in (0, 1), with which the guarantee may fail.
    """
    if not any(one.rounds for one in spent):
        return 0.0
    known = _gaussian_epsilon(math.sqrt(sum(one.rounds * (SENSITIVITY / one.noise) ** 2 for one in spent)), delta)
    if all(one.asked >= one.clients for one in spent):
        return known
    return min(known, _sampled_epsilon(spent, delta))


def _gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the least epsilon of a Gaussian mechanism, exactly.

    Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8. Mechanisms
    one after the other are one whose ``shift`` is the root of the sum of squares (Dong, Roth and Su, "Gaussian
    Differential Privacy", 2022, corollary 3.3).

    Args:
        shift: the sensitivity divided by the standard deviation of the noise, above 0.
        delta: as in ``central_epsilon``.
    """
    from scipy.optimize import brentq  # not at the top: a coordinator without central privacy does not need it
    from scipy.special import log_ndtr

    def excess(epsilon: float) -> float:
        first, second = log_ndtr(shift / 2 - epsilon / shift), epsilon + log_ndtr(-shift / 2 - epsilon / shift)
        return float(second + _log_expm1(max(first - second, sys.float_info.min)) - math.log(delta))

    if excess(0.0) <= 0:
        return 0.0
    enough = shift * (shift / 2 + math.sqrt(-2 * math.log(delta)))  # there, the first term alone is at most delta
    return float(brentq(excess, 0.0, enough, xtol=1e-12, rtol=1e-12))


def _sampled_epsilon(spent: Sequence[NoisyRounds], delta: float) -> float:
    """Return a bound of the epsilon of rounds for somebody who does not know who was asked."""
    divergence = sum((_divergence(one) for one in spent), np.zeros(len(_ORDERS)))
    # Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, proposition 12
    slack = np.log1p(-1 / _ORDERS) - (np.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return max(0.0, float((divergence + slack).min()))


def solve_central_noise(spent: Sequence[NoisyRounds], epsilon: float, delta: float, ahead: NoisyRounds) -> float:
    """Return the least noise, in clipping norms, with which further rounds stay within a budget.

    Args:
        spent: rounds that the budget has paid for already.
        epsilon: the budget.
        delta: as in ``central_epsilon``.
        ahead: the further rounds; their ``noise`` does not matter.

    Raises:
        PrivacyBudgetError: no useful noise is large enough.
    """

    def epsilon_with(noise: float) -> float:
        return central_epsilon([*spent, NoisyRounds(noise, ahead.asked, ahead.clients, ahead.rounds)], delta)

    noise = find_noise(epsilon_with, epsilon)
    if noise is None:
        raise PrivacyBudgetError(
            f"{central_epsilon(spent, delta):.4g} of the budget of epsilon {epsilon:g} is spent, and the rest is too "
            f"little for {ahead.rounds} rounds with noise up to {LARGEST_NOISE:g} clipping norms; choose a larger "
            "privacy.epsilon, or fewer rounds"
        )
    return noise


def _divergence(rounds: NoisyRounds) -> NDArray[np.float64]:
    """Return the Renyi divergence of rounds at each of the orders."""
    noise = rounds.noise / SENSITIVITY
    whole = _ORDERS / (2 * noise**2)
    if rounds.asked >= rounds.clients:
        return np.asarray(rounds.rounds * whole)
    return np.asarray(rounds.rounds * np.minimum(whole, _amplified(noise, rounds.asked / rounds.clients)))


@functools.lru_cache(maxsize=1024)  # each round counts all earlier ones, and for several noises
def _amplified(noise: float, rate: float) -> NDArray[np.float64]:
    """Return the divergence of one round at each of the orders, theorem 9 for the Gaussian mechanism.

    Args:
        noise: divided by the sensitivity.
        rate: part of the clients that the round asks, in (0, 1).
    """
    top = int(_ORDERS[-1])
    j = np.arange(2, top + 1)
    single = j / (2 * noise**2)
    terms = j * np.log(rate) + (j - 1) * single + np.log(2)
    terms[0] = 2 * np.log(rate) + min(np.log(4) + _log_expm1(single[0]), single[0] + np.log(2))
    each = np.where(j <= _ORDERS[:, None], _log_choose() + terms, -np.inf)
    highest = np.maximum(each.max(axis=1), 0.0)
    total = highest + np.log(np.exp(-highest) + np.exp(each - highest[:, None]).sum(axis=1))
    found = np.asarray(total / (_ORDERS - 1))
    found.flags.writeable = False
    return found


@functools.cache
def _log_choose() -> NDArray[np.float64]:
    """Return the logarithms of the binomial coefficients of each order (rows) and each j of 2 to the last order."""
    top = int(_ORDERS[-1])
    j = np.arange(2, top + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, top + 1)))])
    return np.asarray(
        log_factorial[_ORDERS, None] - log_factorial[j] - log_factorial[np.maximum(_ORDERS[:, None] - j, 0)]
    )


def _log_expm1(x: float) -> float:
    """Return log(exp(x) - 1) without overflow."""
    return float(x + np.log(-np.expm1(-x)))
