"""Mistakes in what an algorithm gives to a training are named, not left to torch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.trace import blueprint_of
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.training_checks import check_only
from fedquilt_common.types import Examples

DATA = Examples(np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))


def build() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    module[0].bias.requires_grad_(False)
    return module


def train(**changes: Any) -> set[str]:
    """Return the names of the arrays that training has changed."""
    learner = TorchLearner(build, Training(batch=4, epochs=1), Classification(3))
    start = learner.init(0)
    trained = learner.train(start, DATA, seed=1, **changes).arrays
    return {name for name in start if not np.array_equal(start[name], trained[name])}


NAMES = "The names are: 0.weight, 0.bias, 1.weight, 1.bias, 1.running_mean, 1.running_var, 1.num_batches_tracked, "
ONLY = {
    "a text": ("2.bias", "only is the str '2.bias'; give a collection of names, such as a list"),
    "a number": (3, "only is the int 3; give a collection of names"),
    "nothing": ([], "only is empty, so nothing would be trained"),
    "a name that is wrong": (["2.bias", "fc2"], "only has 'fc2', which the model does not have"),
}


@pytest.mark.parametrize(("only", "words"), ONLY.values(), ids=ONLY)
def test_only_is_a_collection_of_names(only: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}.*{re.escape(NAMES)}2.weight and 1 more$"):
        train(only=only)


def test_only_may_name_what_is_not_trained_if_something_is() -> None:
    assert train(only=["0.bias", "1.running_mean", "2.bias"]) >= {"2.bias", "1.running_mean"}
    with pytest.raises(ValueError, match=r"nothing to train: only has frozen .* \(0.bias\).* are: 0.weight, 1.weight"):
        train(only=["0.bias"])


LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "no gradient": ({"loss": lambda o, t: o.detach().sum()}, "the loss 'LOSS' has no gradient; compute the out"),
    "no gradient of a batch": ({"batch_loss": lambda batch: batch.loss.detach()}, "the loss 'LOSS' has no gradient"),
    "no loss": ({"loss": lambda o, t: None}, "the loss 'LOSS' returned None; return a scalar tensor"),
    "several": ({"loss": lambda o, t: o}, "the loss 'LOSS' returned a tensor of shape (4, 3); return a scalar"),
    "no penalty": ({"penalty": lambda n, s: None}, "the penalty 'LOSS' returned None; return a scalar tensor"),
    "several penalties": ({"penalty": lambda n, s: n["2.bias"]}, "the penalty 'LOSS' returned a tensor of shape (3,)"),
}


@pytest.mark.parametrize(("given", "words"), LOSSES.values(), ids=LOSSES)
def test_a_loss_is_a_scalar_with_a_gradient(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words.replace('LOSS', '<lambda>'))}"):
        train(**given)


def test_a_penalty_may_be_constant() -> None:
    assert train(penalty=lambda n, s: 0.0) == train(penalty=lambda n, s: torch.zeros(()))


def test_a_model_without_parameters_is_not_trained() -> None:
    learner = TorchLearner(nn.Identity, Training(batch=4), Classification(4))
    with pytest.raises(ValueError, match="nothing to train: no parameter of the model requires a gradient"):
        learner.train({}, DATA, seed=1)


def test_with_a_sub_model_only_may_have_names_of_the_whole_model() -> None:
    whole = full_slice(blueprint_of(nn.Linear(4, 3), (4,)).anatomy)
    check_only(["weight", "bias"], {"bias": np.zeros(3)}, replace(whole, absent=frozenset({"weight"})))
    with pytest.raises(ValueError, match="only has 'w', which the model does not have"):
        check_only(["w"], {"bias": np.zeros(3)}, whole)
