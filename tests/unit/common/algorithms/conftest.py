"""A client of digits with a small network of two hidden layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.datasets import load_dataset
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.tracing.trace import blueprint_of
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

BUILD = build_model("mlp", {"hidden": [16, 12]}, (1, 8, 8), 10)
HEAD = frozenset({"fc3.weight", "fc3.bias"})


@dataclass
class Bench:
    """A client context; ``data`` has 60 digits, ``test`` 20 other ones."""

    data: Examples
    test: Examples
    epochs: int = 2
    batch: int = 10
    seed: int = 11
    lasting_seed: int = 5
    classes: int = 10
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)
    build: Callable[[], Any] = BUILD

    @property
    def learning_task(self) -> Classification:
        return Classification(self.classes)

    @cached_property
    def learner(self) -> TorchLearner:
        training = Training(epochs=self.epochs, batch=self.batch, lr=0.1, momentum=0.5)
        return TorchLearner(self.build, training, self.learning_task)

    @cached_property
    def anatomy(self) -> Anatomy:
        return blueprint_of(self.build(), (1, 8, 8)).anatomy

    @property
    def model(self) -> dict[str, NDArray[Any]]:
        """A first global model."""
        return self.learner.init(1)

    def first_model(self) -> dict[str, NDArray[Any]]:
        return self.model


@pytest.fixture
def bench() -> Callable[..., Any]:
    """Makes a client context with ``count`` training and ``tests`` test samples."""

    def make(count: int = 60, tests: int = 20, **changes: Any) -> Any:
        digits = load_dataset("digits").train
        order = np.arange(len(digits))
        return Bench(digits.take(order[:count]), digits.take(order[500 : 500 + tests]), **changes)

    return make
