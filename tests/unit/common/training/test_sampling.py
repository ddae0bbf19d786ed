"""Which samples an epoch has, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.epoch_batches import draw_balanced, draw_order
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

SKEWED = np.repeat([3, 0, 7], [900, 90, 10])
BALANCED = Training(sampling="balanced")


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_each_class_is_equally_likely() -> None:
    drawn = SKEWED[draw_balanced(SKEWED, generator())]
    assert len(drawn) == len(SKEWED)
    share = np.array([(drawn == label).mean() for label in (0, 3, 7)])
    assert share == pytest.approx([1 / 3] * 3, abs=0.05)


def test_each_sample_of_a_class_is_equally_likely() -> None:
    positions = np.concatenate([draw_balanced(SKEWED, generator(seed)) for seed in range(30)])
    counts = np.bincount(positions, minlength=len(SKEWED))[-10:]  # of the ten samples of the smallest class
    assert counts == pytest.approx(counts.mean(), rel=0.15)


def test_the_draws_follow_from_the_seed() -> None:
    one, same, other = (draw_balanced(SKEWED, generator(seed)) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert one[:5].tolist() == [382, 999, 944, 999, 810]  # on every machine and with every torch


def test_soft_labels_and_targets_are_shuffled() -> None:
    for y in (np.random.default_rng(0).random((40, 3)), np.arange(40.0)):
        assert sorted(draw_order(y, BALANCED, generator())) == list(range(40))


def test_an_epoch_has_as_many_steps_as_without() -> None:
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(50, 4)).astype(np.float32), np.repeat([0, 1], [45, 5]))
    made = [
        TorchLearner(lambda: nn.Linear(4, 2), Training(batch=16, epochs=2, sampling=sampling), Classification(2))
        for sampling in ("shuffled", "balanced", "balanced")
    ]
    results = [one.train(one.init(0), data, seed=3) for one in made]
    assert {result.steps for result in results} == {8}
    assert (results[1].arrays["weight"] == results[2].arrays["weight"]).all()
    assert (results[0].arrays["weight"] != results[1].arrays["weight"]).any()
