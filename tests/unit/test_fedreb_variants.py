"""The variants of FedReb and FedROD that benchmarks/ measures: which logits their losses push down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fedreb_variants import count_full_batches, fill_absent, held_classes_loss, prior_loss

from fedquilt_common.algorithm_api import Loss
from fedquilt_common.training.losses import balanced_softmax, cross_entropy

LOGITS = torch.tensor([[1.0, 0.0, 3.0], [0.5, 2.0, 1.0]])
TARGETS = torch.tensor([0, 1])


def gradient(loss: Loss, logits: torch.Tensor, targets: torch.Tensor, *, heads: bool) -> torch.Tensor:
    """Gradient of a loss, in the shape of the logits; with ``heads`` the loss takes two heads' outputs."""
    logits = logits.clone().requires_grad_()
    outputs: Sequence[Any] | torch.Tensor = [logits, torch.zeros_like(logits)] if heads else logits
    loss(outputs, targets).backward()
    assert logits.grad is not None
    return logits.grad


def test_absent_classes_have_no_gradient() -> None:
    found = gradient(held_classes_loss(np.array([0, 1])), LOGITS, TARGETS, heads=True)
    assert found[:, 2].tolist() == [0, 0]
    expected = gradient(cross_entropy, LOGITS[:, :2], TARGETS, heads=False)
    np.testing.assert_allclose(found[:, :2], expected, rtol=1e-6)


def test_with_all_classes_the_loss_is_cross_entropy() -> None:
    found = held_classes_loss(np.arange(3))([LOGITS, LOGITS], TARGETS)
    assert found.item() == cross_entropy(LOGITS, TARGETS).item()


def test_the_prior_is_that_of_balanced_softmax() -> None:
    counts = np.array([3, 5, 0])
    expected = balanced_softmax(counts)(LOGITS, TARGETS)
    np.testing.assert_allclose(prior_loss(counts.astype(float))(LOGITS, TARGETS), expected, rtol=1e-6)


def test_a_class_that_was_not_counted_keeps_its_full_gradient() -> None:
    found = gradient(prior_loss(np.array([0.0, 5.0, 5.0])), LOGITS, TARGETS, heads=False)
    assert found[0, 0].item() == -1 / 2
    assert found.isfinite().all()


def test_absent_classes_get_the_mean_count() -> None:
    assert fill_absent(np.array([2, 0, 4])).tolist() == [2, 3, 4]


def test_the_last_batch_is_counted_only_if_it_is_full() -> None:
    labels = np.arange(10) % 2
    assert count_full_batches(labels, 5, 2, np.random.default_rng(0)).tolist() == [5, 5]
    assert count_full_batches(labels, 4, 3, np.random.default_rng(0)).sum() == 8
    assert count_full_batches(labels[:3], 4, 2, np.random.default_rng(0)).tolist() == [0, 0]
