"""Scores of membership inference, and how well they tell members from non-members. Pure: numpy and scipy only.

A higher score means that the sample looks more like a member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

FPR: Final = 0.01
"""The rate of false positives at which the rate of true positives is reported."""
DRAWS: Final = 1000
"""Resamples of the bootstrap."""
_CONFIDENCE: Final = 0.95
_OWN_VARIANCE: Final = 64
"""Shadow models from which each sample has a variance of its own; with fewer, one for all (Carlini et al., VI-A)."""
_LEAST: Final = 1e-12
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Separation:
    """How well a score separates members from non-members.

    Attributes:
        auc: probability that a member scores higher than a non-member; a tie counts half.
        low: lower end of the 95 % confidence interval of ``auc``, by bootstrap.
        high: its upper end.
        tpr: part of the members above the score that at most ``FPR`` of the non-members exceed.
        least_tpr: lower end of the 95 % confidence interval of ``tpr``.
        most_fpr: upper end of that of the part of all non-members above the score.
    """

    auc: float
    low: float
    high: float
    tpr: float
    least_tpr: float
    most_fpr: float


def sample_losses(outputs: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Return the loss of each sample: cross entropy for classes, the mean squared error for a regression.

    Args:
        outputs: of the model: logits of shape (n, classes), or values of shape (n, outputs).
        y: int64 classes of shape (n,), or floats of shape (n, outputs).

    Returns:
        float64 of shape (n,).
    """
    wide = outputs.astype(np.float64)
    if y.ndim > 1:
        return np.asarray(((wide - y) ** 2).mean(axis=1))
    top = wide.max(axis=1)
    log_sum = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return np.asarray(log_sum - wide[np.arange(len(y)), y])


def sample_confidences(outputs: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Return the scaled confidence of each sample, which is about normally distributed over models.

    It is log(p / (1 - p)) for the probability p of the right class (Carlini et al. 2022, section IV-B), or minus the
    logarithm of the squared error for a regression. Arguments and result are those of ``sample_losses``.
    """
    if y.ndim > 1:
        return np.asarray(-np.log(sample_losses(outputs, y) + _LEAST))
    wide = outputs.astype(np.float64)
    right = wide[np.arange(len(y)), y]
    wide[np.arange(len(y)), y] = -np.inf
    top = wide.max(axis=1)
    return np.asarray(right - top - np.log(np.exp(wide - top[:, None]).sum(axis=1)))


def compare_likelihoods(found: Floats, shadows: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Return the scores of the likelihood ratio attack (Carlini et al. 2022, algorithm 1).

    For each sample, the confidences of the shadow models with it and of those without it are two normal distributions.
    The score is the logarithm of the ratio of their densities at the confidence of the attacked model.

    Args:
        found: confidences of the attacked model, float64 of shape (n,).
        shadows: confidences of the shadow models, float64 of shape (models, n); 4 models or more.
        inside: whether each shadow model was trained on each sample, of the same shape; each sample is in half of them.
    """
    return _log_density(found, shadows, inside) - _log_density(found, shadows, ~inside)


def _log_density(found: Floats, shadows: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """Return the log density of each sample's confidence among those of the chosen models, of shape (n,)."""
    values = np.ma.masked_array(shadows, ~chosen)
    means, variances = values.mean(axis=0).filled(0.0), values.var(axis=0, ddof=1).filled(0.0)
    if len(shadows) < _OWN_VARIANCE:
        variances = np.full_like(means, variances.mean())
    spread = variances + _LEAST
    return np.asarray(-((found - means) ** 2 / spread + np.log(spread)) / 2)


def draw_halves(models: int, samples: int, seed: int) -> NDArray[np.bool_]:
    """Draw which samples each shadow model trains on: each sample is in exactly half of the models.

    Args:
        models: number of shadow models, even.
        samples: number of samples.
        seed: of the draw.

    Returns:
        bool of shape (models, samples).
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    ranks = rng.random((models, samples)).argsort(axis=0).argsort(axis=0)
    return np.asarray(ranks < models // 2)


def measure_auc(members: Floats, others: Floats) -> float:
    """Return the area under the ROC curve.

    Args:
        members: scores of members, of shape (m,), m of 1 or more.
        others: scores of non-members, of shape (n,), n of 1 or more.
    """
    ordered = np.sort(others)
    below, up_to = (np.searchsorted(ordered, members, side=side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(others)))


def measure_tpr(members: Floats, others: Floats) -> tuple[float, float, float]:
    """Return the part of the members above the lowest threshold that at most ``FPR`` of the non-members exceed.

    Returns:
        That part, the lower end of its interval, and the upper end of that of the non-members' part, each of 95 %
        (Clopper and Pearson 1934). The second holds although the threshold is one of the non-members' scores: it is
        the distribution of an order statistic.
    """
    allowed = min(math.floor(FPR * len(others) + 1e-9), len(others) - 1)
    found = int((members > np.sort(others)[::-1][allowed]).sum())
    tail = (1 - _CONFIDENCE) / 2
    least = float(beta.ppf(tail, found, len(members) - found + 1)) if found else 0.0
    most = float(beta.ppf(1 - tail, allowed + 1, len(others) - allowed))
    return found / len(members), least, most


def measure_separation(members: Floats, others: Floats, seed: int) -> Separation:
    """Return how well the scores separate members from non-members.

    Args:
        members: scores of members, of shape (m,), m of 1 or more.
        others: scores of non-members, of shape (n,), n of 1 or more.
        seed: of the bootstrap, which resamples members and non-members.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = [measure_auc(rng.choice(members, len(members)), rng.choice(others, len(others))) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Separation(measure_auc(members, others), float(low), float(high), *measure_tpr(members, others))
