"""What the coordinator makes of an experiment: the first model, the evaluation, the partition's digest.

torch and the data set are loaded when they are first needed, so a coordinator that only waits stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedquilt_common.algorithms import DIAGNOSTICS, make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.shares import digest, holdout_of, shares
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment import Experiment
from fedquilt_common.seeds import derive_seed
from fedquilt_common.slicing import Anatomy, Slice
from fedquilt_common.types import Algorithm, Arrays, Dataset

ANYWHERE = ("*",)
"""The coordinator's user names the packages in the experiment himself, so any may be imported."""


@dataclass(frozen=True)
class Workbench:
    """The server's own tools for one experiment."""

    experiment: Experiment

    def algorithm(self) -> Algorithm:
        """The algorithm with its fields."""
        choice = self.experiment.algorithm
        return make_algorithm(choice.name, choice.fields, ANYWHERE)

    @property
    def learns(self) -> bool:
        """Whether there is anything to train and evaluate at all."""
        return self.experiment.algorithm.name not in DIAGNOSTICS

    @cached_property
    def dataset(self) -> Dataset:
        return load_dataset(self.experiment.data.set, None, ANYWHERE)

    @cached_property
    def _learner(self) -> Any:
        from fedquilt_common.learner import TorchLearner, set_up_torch

        set_up_torch()
        return TorchLearner(self._build, self.experiment.training, self.dataset.classes, blueprint=self._blueprint)

    @cached_property
    def _build(self) -> Any:
        from fedquilt_common.models import build_model

        model, data = self.experiment.model, self.dataset
        return build_model(model.name, model.params, data.input_shape, data.classes, ANYWHERE)

    @cached_property
    def _traced(self) -> Any:
        from fedquilt_common.anatomy.trace import blueprint_for

        return blueprint_for(self._build, self.dataset.train.x)

    def _blueprint(self) -> Any:
        return self._traced

    @property
    def anatomy(self) -> Anatomy:
        """The model's channel groups. Raises UncuttableModelError."""
        anatomy: Anatomy = self._traced.anatomy
        return anatomy

    def first_model(self) -> Arrays:
        """The initial global model, from the run's seed."""
        seed = derive_seed(self.experiment.seed, "model")
        if not self.learns:
            from fedquilt_common.models.ballast import ballast

            return ballast(**self.experiment.model.params)
        arrays: Arrays = self._learner.init(seed)
        return arrays

    def evaluate(self, arrays: Arrays, part: Slice | None = None) -> dict[str, float]:
        """Scores on the data set's test split; ``arrays`` are those of the sub-model ``part`` if there is one.

        Raises ExperimentError where the clients train on that split.
        """
        if self.experiment.data.mixed:
            raise ExperimentError(
                "data.mixed = True: the clients have the test split, so only they can evaluate; the algorithm's round "
                "must end with `return (yield from measured(state, lab))`"
            )
        scores: dict[str, float] = self._learner.evaluate(arrays, self.dataset.test, part=part)
        return scores

    def partition_digest(self) -> str | None:
        """SHA-256 of every client's sample indices: a board that would cut the data otherwise is found out."""
        if not self.learns:
            return None
        return digest(shares(self.experiment, self.dataset, self.holdout))

    @cached_property
    def holdout(self) -> float:
        """The part of its samples that each client keeps for testing. Raises ExperimentError."""
        return holdout_of(self.experiment, self.algorithm(), self.dataset) if self.learns else 0.0

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that are trained."""
        names: frozenset[str] = self._learner.parameters
        return names
