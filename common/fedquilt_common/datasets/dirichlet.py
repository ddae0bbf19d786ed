"""Draw the shares of clients from Dirichlet distributions, however small alpha is.

Below alpha = 0.1 most draws are smaller than any float, so that weights which differ by many orders of magnitude all
become 0. There the draws stay logarithms until the largest of them is known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_Weights = NDArray[np.float64]
_SMALL: Final = 0.1
"""Below it, draws are logarithms. At it, no draw becomes 0, and those of earlier versions stay."""
_LIMITS: Final = (1e-100, 1e100)
"""Beyond them the distribution is at its limit: a single client has all, or all have equal parts."""


def draw_client_weights(clients: int, classes: int, alpha: float, rng: np.random.Generator) -> _Weights:
    """Draw each client's size and its probabilities of the classes from Dir(alpha).

    Returns:
        Their product, shape (clients, classes): each column holds the weights by which a class is divided, of which
        one at least is above 0.
    """
    alpha = _limit(alpha)
    if alpha >= _SMALL:
        sizes = rng.dirichlet(np.full(clients, alpha))
        return np.asarray(sizes[:, None] * rng.dirichlet(np.full(classes, alpha), size=clients))
    sizes = _draw_logs((clients,), alpha, rng)
    return _exponentiate(sizes[:, None] + _draw_logs((clients, classes), alpha, rng), alpha)


def draw_class_weights(may_receive: NDArray[np.bool_], alpha: float, rng: np.random.Generator) -> _Weights:
    """Draw each client's part of a class from Dir(alpha).

    Args:
        may_receive: whether a client may get samples of the class, shape (clients,); true for one at least.
        alpha: parameter of the distribution, above 0.
        rng: source of the draws.

    Returns:
        The weights by which the class is divided, shape (clients,), 0 for those that may receive nothing; one at least
        is above 0.
    """
    alpha = _limit(alpha)
    if alpha >= _SMALL:
        return np.asarray(rng.dirichlet(np.full(len(may_receive), alpha)) * may_receive)
    return _exponentiate(np.where(may_receive, _draw_logs(may_receive.shape, alpha, rng), -np.inf), alpha)


def _limit(alpha: float) -> float:
    least, most = _LIMITS
    return min(max(alpha, least), most)


def _draw_logs(shape: tuple[int, ...], alpha: float, rng: np.random.Generator) -> _Weights:
    """Return alpha times the logarithms of draws from Dir(alpha) along the last axis; all are finite.

    A draw from Gamma(alpha) is one from Gamma(alpha + 1) times U ** (1 / alpha), where U is uniform (Marsaglia and
    Tsang, "A Simple Method for Generating Gamma Variables", ACM TOMS 2000).
    """
    draws = alpha * np.log(rng.gamma(alpha + 1, size=shape)) + np.log1p(-rng.random(shape))
    draws -= draws.max(axis=-1, keepdims=True)
    logs: _Weights = draws - alpha * np.log(np.exp(draws / alpha).sum(axis=-1, keepdims=True))
    return logs


def _exponentiate(logs: _Weights, alpha: float) -> _Weights:
    """Return the weights of which ``logs`` are alpha times the logarithms; the largest along the first axis is 1."""
    return np.asarray(np.exp((logs - logs.max(axis=0)) / alpha))
