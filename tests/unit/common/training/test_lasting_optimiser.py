"""An optimiser that outlives a training: several trainings after one another are one long one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks.classification import Classification
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.trace import blueprint_of
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples
from fedquilt_common.wire.codec import FileArrays, write_arrays

ONE = Examples(np.array([[0.5, -1.0, 2.0, 0.1]], np.float32), np.array([1]))  # a single sample has a single order


def train(lasting: dict[str, NDArray[Any]] | None, start: Any, epochs: int, **settings: Any) -> Any:
    training = Training.model_validate({"lr": 0.01, **settings})
    states = LastingOptimisers(lasting) if lasting is not None else None
    learner = TorchLearner(lambda: nn.Linear(4, 3), training, Classification(3), lasting=states)
    return learner.train(start or learner.init(0), ONE, seed=1, epochs=epochs).arrays


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "amp"])
@pytest.mark.parametrize(
    "optimiser", [{"momentum": 0.9}, {"optimiser": "adam"}, {"optimiser": "rmsprop"}, {"weight_decay": 0.1}]
)
def test_a_checkpoint_between_does_not_change_a_bit(precision: str, optimiser: Any, tmp_path: Path) -> None:
    settings = {"precision": precision, **optimiser}
    whole = train(None, None, 8, **settings)
    state: dict[str, NDArray[Any]] = {}
    first = train(state, None, 3, **settings)
    write_arrays(tmp_path / "state", state)
    stored = {name: np.array(array) for name, array in FileArrays(tmp_path / "state").items()}
    after = train(stored, first, 5, **settings)
    assert {name: array.tobytes() for name, array in after.items()} == {
        name: array.tobytes() for name, array in whole.items()
    }
    if "optimiser" in optimiser or "momentum" in optimiser:
        forgetful = train(None, first, 5, **settings)
        assert any((forgetful[name] != whole[name]).any() for name in whole)


def test_the_state_names_its_parameters() -> None:
    state: dict[str, NDArray[Any]] = {}
    train(state, None, 4, optimiser="adam", precision="amp")
    assert state.keys() == {
        f"0.0/{entry}"
        for entry in (
            "steps",
            "optimiser/adam",
            "weight/0",
            "weight/1",
            "bias/0",
            "bias/1",
            "scale/value",
            "scale/finite_steps",
        )
    }
    assert (int(state["0.0/steps"]), float(state["0.0/scale/value"])) == (4, 32768.0)  # the first scale is too large


def test_each_phase_and_each_training_of_a_task_has_its_own_optimiser() -> None:
    kept: dict[str, NDArray[Any]] = {}
    settings = Training(lr=0.01, momentum=0.9)
    learner = TorchLearner(lambda: nn.Linear(4, 3), settings, Classification(3))
    start, whole = learner.init(0), TrainingPhase(ONE)
    head = TrainingPhase(ONE, only={"bias"})

    def run_task(task: str, start: Any) -> Any:
        lasting = replace(learner, lasting=LastingOptimisers(kept, f"{task}/"))
        first = lasting.train_in_turn(start, [whole, head], [0, 1], seed=1).arrays
        return lasting.train(first, ONE, seed=1).arrays

    first = run_task("train", start)
    assert {name.rsplit("/", 1)[0] for name in kept} == {
        "train/0.0", "train/0.0/optimiser", "train/0.0/weight", "train/0.0/bias", "train/0.1", "train/0.1/optimiser",
        "train/0.1/bias", "train/1.0", "train/1.0/optimiser", "train/1.0/weight", "train/1.0/bias",
    }  # fmt: skip
    other, third = run_task("other", first), run_task("third", first)  # other tasks have no momentum yet
    assert all(np.array_equal(other[name], third[name]) for name in first)
    assert not np.array_equal(run_task("train", first)["weight"], other["weight"])


def test_parameters_that_were_not_trained_in_between_start_anew() -> None:
    kept: dict[str, NDArray[Any]] = {}
    learner = TorchLearner(lambda: nn.Linear(4, 3), Training(lr=0.01, momentum=0.9), Classification(3))
    for names in ({"weight"}, {"bias"}):
        replace(learner, lasting=LastingOptimisers(kept)).train(learner.init(0), ONE, seed=1, only=names)
    assert kept.keys() == {"0.0/steps", "0.0/optimiser/sgd", "0.0/bias/0"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"momentum": 0.9}, {"optimiser": "adam"}),
        ({"momentum": 0.9}, {"optimiser": "rmsprop"}),
        ({"optimiser": "rmsprop"}, {"momentum": 0.9}),
        ({"optimiser": "adam"}, {"momentum": 0.9}),
        ({"optimiser": "adam"}, {"optimiser": "adam-keras"}),
        ({}, {"precision": "amp"}),
    ],
)
def test_an_optimiser_takes_no_state_of_another_kind(before: Any, after: Any) -> None:
    """An algorithm may choose another one from round to round, with ``with_settings``."""
    kept: dict[str, NDArray[Any]] = {}
    first = train(kept, None, 3, **before)
    continued, fresh = train(kept, first, 3, **after), train(None, first, 3, **after)
    assert all(np.array_equal(continued[name], fresh[name]) for name in fresh)


def test_sub_models_cannot_keep_optimisers() -> None:
    learner = TorchLearner(lambda: nn.Linear(4, 3), Training(), Classification(3), lasting=LastingOptimisers({}))
    part = full_slice(blueprint_of(nn.Linear(4, 3), (4,)).anatomy)
    with pytest.raises(ExperimentError, match=r"training.keep_optimiser = true.*remove the key"):
        learner.train(learner.init(0), ONE, seed=1, part=part)
