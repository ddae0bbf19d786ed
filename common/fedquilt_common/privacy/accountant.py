"""The privacy that noisy training steps spend, as Opacus accounts for it.

A step of DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016) draws each sample with probability
``rate``, clips its gradient and adds Gaussian noise. ``epsilon_of`` returns the epsilon of all steps together.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fedquilt_common.errors import PackageMissingError, PrivacyBudgetError, how_to_install_on_boards

if TYPE_CHECKING:
    from numpy.typing import NDArray

AccountantName = Literal["rdp", "prv"]

MISSING: Final = f"differential privacy needs the package opacus: {how_to_install_on_boards('dp')}"
LARGEST_NOISE: Final = 1000.0
"""With more noise, in clipping norms, nothing can be learned."""
TOLERANCE: Final = 0.01
"""How far below the budget the epsilon of the found noise may lie; Opacus's default."""
LARGEST_GRID: Final = 1 << 22
"""Most points of the accountant ``prv``, each about 200 bytes of memory. Large epsilons and many steps need more."""
_FINEST: Final = 1e-9
"""Relative to the noise, how finely it is searched: the accountant ``prv`` jumps to infinity at an epsilon of 700."""


@dataclass(frozen=True)
class Charge:
    """Training steps of one kind.

    Attributes:
        noise: standard deviation of the noise on a sum of clipped gradients, divided by the clipping norm.
        rate: probability with which a step draws each sample, in (0, 1].
        steps: number of steps.
    """

    noise: float
    rate: float
    steps: int


def epsilon_of(charges: Sequence[Charge], delta: float, accountant: AccountantName) -> float:
    """Return the epsilon that steps spend together; 0 for no steps, infinity if ``prv`` would need too much memory.

    Args:
        charges: the steps, in any order.
        delta: probability, in (0, 1), with which the guarantee may fail.
        accountant: ``rdp`` (Mironov et al., "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019) or
            ``prv`` (Gopi et al., "Numerical Composition of Differential Privacy", NeurIPS 2021).

    Raises:
        PackageMissingError: Opacus is not installed.
    """
    steps = Counter[tuple[float, float]]()
    for charge in charges:
        steps[charge.noise, charge.rate] += charge.steps
    history = [(noise, rate, count) for (noise, rate), count in steps.items() if count]
    if not history:
        return 0.0
    try:
        import opacus.accountants  # noqa: F401
    except ImportError:
        raise PackageMissingError(MISSING) from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")  # the bound is looser, but it holds
        warnings.filterwarnings("ignore", message="divide by zero")  # with rate 1, log(0) is a right minus infinity
        return (_rdp_epsilon if accountant == "rdp" else _prv_epsilon)(history, delta)


def solve_noise(
    spent: Sequence[Charge], epsilon: float, delta: float, rate: float, steps: int, accountant: AccountantName
) -> float:
    """Return the least noise with which further steps stay within a budget, to the tolerance of Opacus.

    Args:
        spent: steps that the budget has paid for already.
        epsilon: the budget.
        delta: as in ``epsilon_of``.
        rate: probability, in (0, 1], with which each further step draws a sample.
        steps: number of further steps, 1 or more.
        accountant: as in ``epsilon_of``.

    Returns:
        The noise, in clipping norms. Without ``spent``, that of Opacus's ``get_noise_multiplier``.

    Raises:
        PrivacyBudgetError: no noise is large enough, or ``prv`` would need too much memory.
        PackageMissingError: Opacus is not installed.
    """

    def epsilon_with(noise: float) -> float:
        return epsilon_of([*spent, Charge(noise, rate, steps)], delta, accountant)

    noise = find_noise(epsilon_with, epsilon)
    if noise is None:
        raise PrivacyBudgetError(
            f"{epsilon_of(spent, delta, accountant):.4g} of the budget of epsilon {epsilon:g} is spent, and the "
            f"rest is too little for {steps} steps with any useful noise; {_advise(spent, epsilon, delta, accountant)}"
        )
    if accountant == "prv" and epsilon - epsilon_with(noise) > TOLERANCE:  # with a little less noise it is infinite
        raise PrivacyBudgetError(
            f"privacy.accountant: prv cannot count {steps} steps up to epsilon {epsilon:g} within about 1 GB; "
            "choose rdp, or a smaller privacy.epsilon"
        )
    return noise


def _advise(spent: Sequence[Charge], epsilon: float, delta: float, accountant: AccountantName) -> str:
    """Return what to do if a budget is too small: RDP's orders count something even for one step of any noise."""
    usual = "choose a larger privacy.epsilon, or fewer rounds"
    if accountant == "prv":
        return usual
    least = epsilon_of([*spent, Charge(LARGEST_NOISE, 1e-3, 1)], delta, accountant)
    if least <= epsilon:
        return usual
    return (
        f"privacy.accountant: rdp counts {least:.4g} for even one step. Choose prv, which is tighter, or a larger "
        "privacy.epsilon"
    )


def find_noise(epsilon_with: Callable[[float], float], epsilon: float) -> float | None:
    """Return the least noise with which a budget lasts, to the tolerance of Opacus; None if no useful one is enough.

    Args:
        epsilon_with: returns the epsilon that is spent with a noise, in clipping norms.
        epsilon: the budget.
    """
    low, high, found = 0.0, 10.0, float("inf")
    while found > epsilon:
        if high >= LARGEST_NOISE:
            return None
        high = min(2 * high, LARGEST_NOISE)
        found = epsilon_with(high)
    while epsilon - found > TOLERANCE and high - low > _FINEST * high:
        noise = (low + high) / 2
        value = epsilon_with(noise)
        if value < epsilon:
            high, found = noise, value
        else:
            low = noise
    return high


def _prv_epsilon(history: Sequence[tuple[float, float, int]], delta: float) -> float:
    from opacus.accountants import PRVAccountant

    class Bounded(PRVAccountant):  # type: ignore[misc] # Opacus has no types
        """Stops before the grid of the privacy loss takes its memory."""

        def _get_domain(self, **how: Any) -> Any:
            domain = super()._get_domain(**how)
            if domain.size > LARGEST_GRID:
                raise _LargeGridError
            return domain

    accountant = Bounded()
    accountant.history = list(history)
    try:
        return float(accountant.get_epsilon(delta=delta))
    except _LargeGridError:
        return math.inf


class _LargeGridError(Exception):
    """The grid of the privacy loss has more points than ``LARGEST_GRID``."""


def _rdp_epsilon(history: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Return what Opacus's ``RDPAccountant`` returns for a history of noise, rate and steps, to the bit."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import get_privacy_spent

    divergence = sum(_divergence(noise, rate) * steps for noise, rate, steps in history)
    epsilon, _ = get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=divergence, delta=delta)
    return max(0.0, float(epsilon))  # the bound can be below 0 at a large delta


@functools.lru_cache(maxsize=256)  # 0.1 s each on a workstation, and each task counts the steps of all earlier ones
def _divergence(noise: float, rate: float) -> NDArray[Any]:
    """Return the Renyi divergence of one step at each of the accountant's orders: float64 of shape (orders,)."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    found: NDArray[Any] = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)
    found.flags.writeable = False
    return found
