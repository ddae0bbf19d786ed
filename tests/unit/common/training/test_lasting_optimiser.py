"""An optimiser that outlives a training: several trainings after one another are one long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.experiment.sections import Training
from fedquilt_common.learning_tasks.classification import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples
from fedquilt_common.wire.codec import FileArrays, write_arrays

ONE = Examples(np.array([[0.5, -1.0, 2.0, 0.1]], np.float32), np.array([1]))  # a single sample has a single order


def train(lasting: dict[str, NDArray[Any]] | None, start: Any, epochs: int, **settings: Any) -> Any:
    training = Training.model_validate({"lr": 0.01, **settings})
    learner = TorchLearner(lambda: nn.Linear(4, 3), training, Classification(3), lasting=lasting)
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
        "steps", "weight/0", "weight/1", "bias/0", "bias/1", "scale/value", "scale/finite_steps",
    }  # fmt: skip
    assert (int(state["steps"]), float(state["scale/value"])) == (3, 32768.0)  # the first scale is too large
