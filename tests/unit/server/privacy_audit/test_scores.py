"""Scores of membership inference and their measures, against scikit-learn and against what privacy allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedquilt_server.privacy_audit.bound import PrivacyBound
from fedquilt_server.privacy_audit.scores import (
    compare_likelihoods,
    draw_halves,
    measure_auc,
    measure_separation,
    measure_tpr,
    sample_confidences,
    sample_losses,
)

RNG = np.random.default_rng(5)


def test_the_auc_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score  # slow to load: not for every selection

    members, others = RNG.normal(0.4, 1, 300).round(1), RNG.normal(0, 1, 200).round(1)  # rounded, so that many tie
    truth = np.repeat([1, 0], [300, 200])
    assert measure_auc(members, others) == pytest.approx(roc_auc_score(truth, np.concatenate([members, others])))


def test_a_group_has_the_sum_of_its_members_epsilons() -> None:
    found = PrivacyBound(0.5, 1e-5).of_group(3)
    assert found.epsilon == 1.5
    assert found.delta == pytest.approx(3 * math.e * 1e-5)
    assert PrivacyBound(0.5, 1e-5).of_group(1) == PrivacyBound(0.5, 1e-5)
    assert PrivacyBound(900.0, 1e-5).of_group(2).auc == 1


def test_the_interval_holds_the_auc_and_narrows() -> None:
    wide, narrow = (measure_separation(RNG.normal(1, 1, n), RNG.normal(0, 1, n), 1) for n in (50, 2000))
    for found in (wide, narrow):
        assert found.low < found.auc < found.high
    assert narrow.high - narrow.low < 0.3 * (wide.high - wide.low)
    assert narrow.low < 0.7602 < narrow.high  # the normal distribution at 1 / sqrt(2)


def test_true_positives_are_counted_where_one_percent_is_false() -> None:
    others = np.arange(200.0)
    assert measure_tpr(np.array([197.5, 198.5, 50.0, 199.5]), others)[0] == pytest.approx(0.75)  # 198 and 199 are false
    assert measure_tpr(np.array([0.5, 2.5]), np.arange(3.0))[0] == pytest.approx(0.5)  # with few samples: none is false
    assert measure_tpr(np.zeros(5), np.zeros(200))[:2] == (0.0, 0.0)


def test_intervals_of_the_rates_are_those_of_clopper_and_pearson() -> None:
    """At an end of such an interval, what was found, or more, has a probability of 2.5 %."""
    members, others = np.arange(364.0) - 328, -np.arange(364.0)
    rate, least, most = measure_tpr(members, others)
    assert rate == pytest.approx(38 / 364)  # 3 non-members are above -3
    assert binom.sf(37, 364, least) == pytest.approx(0.025)
    assert binom.cdf(3, 364, most) == pytest.approx(0.025)


def test_losses_and_confidences() -> None:
    outputs, y = np.array([[2.0, 0.0, -1.0], [900.0, 0.0, 0.0]], np.float32), np.array([0, 1])
    p = math.exp(2) / (math.exp(2) + 1 + math.exp(-1))
    assert sample_losses(outputs, y) == pytest.approx([-math.log(p), 900.0])
    assert sample_confidences(outputs, y) == pytest.approx([math.log(p / (1 - p)), -900.0])
    values = np.array([[1.0], [2.0]], np.float32)
    assert sample_losses(values, np.array([[1.5], [2.0]])) == pytest.approx([0.25, 0.0])
    assert np.isfinite(sample_confidences(values, np.array([[1.5], [2.0]]))).all()


def test_each_sample_is_in_half_of_the_shadow_models() -> None:
    halves = draw_halves(6, 40, 3)
    assert (halves.sum(axis=0) == 3).all()
    assert (halves == draw_halves(6, 40, 3)).all()
    assert (halves != draw_halves(6, 40, 4)).any()
    assert len(np.unique(halves, axis=1).T) > 5


@pytest.mark.parametrize("models", [8, 64])
def test_likelihoods_find_members_where_the_loss_does_not(models: int) -> None:
    """Samples differ more in how hard they are than in whether the model has seen them."""
    n = 400
    hard, is_member = RNG.normal(0, 5, n), np.arange(n) < n // 2
    halves = draw_halves(models, n, 1)
    shadows = hard + 2 * halves + RNG.normal(0, 0.5, (models, n))
    found = hard + 2 * is_member + RNG.normal(0, 0.5, n)
    scores = compare_likelihoods(found, shadows, halves)
    assert measure_auc(scores[is_member], scores[~is_member]) > 0.97
    assert measure_auc(found[is_member], found[~is_member]) < 0.7


def test_the_bound_of_a_guarantee() -> None:
    assert PrivacyBound(math.log(3), 0.0).auc == pytest.approx(0.75)
    assert PrivacyBound(0.0, 0.0).auc == pytest.approx(0.5)
    bound = PrivacyBound(1.0, 0.001)
    assert bound.limit_tpr(0.01) == pytest.approx(math.e * 0.01 + 0.001)
    assert bound.limit_tpr(0.9) == pytest.approx(1 - (1 - 0.001 - 0.9) / math.e)
    rates = np.linspace(0, 1, 20001)
    curve = np.array([bound.limit_tpr(float(rate)) for rate in rates])
    assert bound.auc == pytest.approx(((curve[1:] + curve[:-1]) / 2).mean(), abs=1e-4)
    assert PrivacyBound(2000.0, 1e-5).auc == pytest.approx(1.0)


def test_no_attack_on_a_gaussian_mechanism_exceeds_its_bound() -> None:
    """The ROC curve of noise with standard deviation 1 on a sum of sensitivity 1; its epsilon is that of delta 1e-5."""
    members, others = RNG.normal(1, 1, 1000), RNG.normal(0, 1, 1000)
    bound = PrivacyBound(4.377, 1e-5)
    found = measure_separation(members, others, 0)
    assert found.low < 0.7602 < found.high < bound.auc
    assert found.tpr < bound.limit_tpr(0.01)
    assert found.least_tpr < bound.limit_tpr(found.most_fpr)
