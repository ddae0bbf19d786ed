"""Consensus, quantiser, losses and neighbours of FedAKD against the published code's numbers and the papers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.data import golden_vectors

from fedquilt_common.aggregation.soft_labels import (
    Quantiser,
    confidence_weights,
    dissenting_labels,
    sharpen,
    softmax,
    weighted_sum,
)
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.algorithms.cfedakd import CFedAKD
from fedquilt_common.algorithms.fedakd import FedAKD
from fedquilt_common.algorithms.fedmd import FedMD
from fedquilt_common.training.losses import DISTILLATION, divergence

CLASSES = 4
QUANTISER = Quantiser()


@pytest.fixture(scope="module")
def golden() -> Any:
    return golden_vectors("e_kd_soft_labels.json")


@pytest.fixture(scope="module")
def logits(golden: Any) -> NDArray[np.float32]:
    return np.array(golden["logits_clients_x_samples_x_classes"], np.float32)


def replies(golden: Any, logits: NDArray[np.float32], encode: Any) -> dict[int, Reply]:
    each = zip(logits, golden["accuracies"], strict=True)
    return {c: Reply(encode(one), 1.0, {"accuracy": right}) for c, (one, right) in enumerate(each)}


def test_fedmd_takes_the_plain_mean(golden: Any, logits: NDArray[np.float32]) -> None:
    found = FedMD().aggregate_labels(replies(golden, logits, FedMD().encode), CLASSES)["logits"]
    np.testing.assert_allclose(found, golden["fedmd_plain_mean(official)"], atol=1e-5)


def test_fedakd_weighs_by_accuracy(golden: Any, logits: NDArray[np.float32]) -> None:
    found = FedAKD().aggregate_labels(replies(golden, logits, FedAKD().encode), CLASSES)["logits"]
    np.testing.assert_allclose(found, golden["fedakd_accuracy_weighted(official)"], atol=1e-5)


def test_cfedakd_quantises_each_class_over_the_samples(golden: Any, logits: NDArray[np.float32]) -> None:
    expected = golden["quantiser_variants_own"]["per_class_over_samples(code)"]
    for client, codes in enumerate(expected["local_uint8_round"]):
        assert QUANTISER.encode(logits[client])["codes"].tolist() == codes
    cut_off = {**QUANTISER.encode(logits[0]), "codes": np.array(expected["local_uint8_trunc"][0], np.uint8)}
    restored = QUANTISER.decode(cut_off, CLASSES)
    np.testing.assert_allclose(restored, expected["client0_roundtrip_with_min_max_restored"], atol=1e-5)
    again = QUANTISER.decode(QUANTISER.encode(logits[0]), CLASSES)
    assert np.abs(again - logits[0]).max() <= expected["one_step_bound"] / 2 + 1e-6


@pytest.mark.parametrize(("ranges", "key"), [("tensor", "whole_tensor"), ("sample", "per_sample_over_classes")])
def test_other_ranges_of_the_quantiser(ranges: Any, key: str, golden: Any, logits: NDArray[np.float32]) -> None:
    for client, codes in enumerate(golden["quantiser_variants_own"][key]["local_uint8_round"]):
        assert Quantiser(ranges=ranges).encode(logits[client])["codes"].tolist() == codes


def test_cfedakd_means_the_labels_not_the_codes(golden: Any, logits: NDArray[np.float32]) -> None:
    """The published code averages codes of different scales; ours must agree with FedAKD up to the quantisation."""
    one = CFedAKD()
    mean_labels = one.decode(one.aggregate_labels(replies(golden, logits, one.encode), CLASSES), CLASSES)
    exact = np.array(golden["fedakd_accuracy_weighted(official)"])
    steps = np.ptp(logits, axis=1).max(axis=0) / 255
    assert (np.abs(mean_labels - exact) <= steps + 1e-5).all()


@pytest.mark.parametrize(("name", "key"), [("mae", "MAE(code)"), ("mse", "MSE(thesis)"), ("kl", "KL_batchmean_T1")])
def test_distillation_losses(name: str, key: str, golden: Any, logits: NDArray[np.float32]) -> None:
    student = torch.tensor(logits[0]).double()
    teacher = torch.tensor(golden["fedakd_accuracy_weighted(official)"]).double()
    expected = golden["kd_losses"]["logits_client0_vs_weighted_global"][key]
    assert DISTILLATION[name](student, teacher).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", ["0.1", "0.5", "1.0"])
def test_dsfl_reduces_the_entropy_of_the_mean(temperature: str, golden: Any, logits: NDArray[np.float32]) -> None:
    mean = np.mean([softmax(one) for one in logits], axis=0)
    expected = golden["dsfl_era_own"]["temperature"][temperature]
    np.testing.assert_allclose(sharpen(mean, float(temperature)), expected, atol=1e-5)


def test_feddf_learns_from_the_mean_of_the_logits(golden: Any, logits: NDArray[np.float32]) -> None:
    feddf = golden["feddf_own"]
    teacher, student = (torch.tensor(feddf[key]) for key in ("teacher_avg_logits", "student_logits"))
    assert divergence(student, teacher).item() == pytest.approx(feddf["loss_avg_logits_T1"], abs=1e-5)


def test_fedet_weighs_clients_by_the_variance_of_their_logits(golden: Any, logits: NDArray[np.float32]) -> None:
    fedet = golden["fed_et_own"]
    weights = confidence_weights(logits)
    np.testing.assert_allclose(weights, fedet["alpha_weights"], atol=1e-5)
    consensus = weighted_sum(logits, weights)
    np.testing.assert_allclose(consensus, fedet["consensus_logits"], atol=1e-5)
    label = consensus.argmax(axis=1)
    assert label.tolist() == fedet["consensus_label"]
    labels, exist = dissenting_labels(logits, label)
    np.testing.assert_allclose(labels[exist], np.array(fedet["diversity_logits"])[exist], atol=1e-5)
    assert exist.tolist() == np.array(fedet["disagree_mask"]).any(axis=0).tolist()
