"""What the coordinator makes of an experiment: the first model, the evaluation, the partition's digest.

torch and the data set are loaded when they are first needed, so a coordinator that only waits stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Algorithm, Learner, declaration_of
from fedquilt_common.algorithms import DIAGNOSTICS, make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.public import digest_of, public_set
from fedquilt_common.datasets.shares import clients_evaluate, digest, holdout_of, shares
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.sections import Model, Variant
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId, Dataset

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
        return self._learner_of(self.experiment.usual)

    def _learner_of(self, variant: Variant) -> Any:
        from fedquilt_common.training.learner import TorchLearner, set_up_torch

        set_up_torch()
        usual = variant.model == self.experiment.model
        build = self._build if usual else self._builder(variant.model)
        return TorchLearner(
            build, variant.training, self.dataset.classes, blueprint=self._blueprint if usual else None
        )  # fmt: skip

    @cached_property
    def _build(self) -> Any:
        return self._builder(self.experiment.model)

    def _builder(self, model: Model) -> Any:
        from fedquilt_common.models import build_model

        data = self.dataset
        return build_model(model.name, model.params, data.input_shape, data.classes, ANYWHERE)

    @property
    def note(self) -> str:
        """What whoever reads the results must know of the data."""
        return self.dataset.note if self.learns else ""

    @property
    def learner(self) -> Learner:
        """Of the experiment's model."""
        learner: Learner = self._learner
        return learner

    @cached_property
    def prototypes(self) -> Sequence[Learner]:
        """A learner for each of the different models that clients have."""
        usual = self.experiment.usual
        return [self._learner_of(usual.model_copy(update={"model": model})) for model in self.experiment.models]

    def prototype_of(self, client: ClientId) -> int:
        """Which of ``prototypes`` a client has."""
        return self.experiment.models.index(self.experiment.variant(client).model)

    @property
    def classes(self) -> int:
        """Of the data set; 0 for regression."""
        return self.dataset.classes if self.learns else 0

    @cached_property
    def public(self) -> NDArray[Any]:
        """The samples that coordinator and boards share. Raises ExperimentError, DataUnavailableError."""
        return public_set(self.experiment, self.dataset, ANYWHERE)

    @cached_property
    def _traced(self) -> Any:
        from fedquilt_common.tracing.trace import blueprint_for

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

    def evaluate(self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None) -> dict[str, float]:
        """Scores on the data set's test split; ``arrays`` are those of the sub-model ``part`` if there is one, or of
        the model of ``learner``.

        Raises ExperimentError where the clients train on that split.
        """
        if self.experiment.data.mixed:
            raise ExperimentError(
                "data.mixed = True: the clients have the test split, so only they can evaluate; the algorithm's round "
                "must end with `return (yield from measured(state, lab))`"
            )
        return (learner or self.learner).evaluate(arrays, self.dataset.test, part=part)

    def partition_digest(self) -> str | None:
        """SHA-256 of every client's sample indices: a board that would cut the data otherwise is found out."""
        if not self.learns:
            return None
        return digest(shares(self.experiment, self.dataset, self.holdout))

    def public_digest(self) -> str | None:
        """SHA-256 of the public samples, so that a board that has others is found out; None where there are none."""
        return digest_of(self.public) if self.learns and self.experiment.data.public is not None else None

    @cached_property
    def holdout(self) -> float:
        """The part of its samples that each client keeps for testing. Raises ExperimentError."""
        return holdout_of(self.experiment, self.algorithm(), self.dataset) if self.learns else 0.0

    @cached_property
    def clients_evaluate(self) -> bool:
        """Whether models are evaluated where the clients live."""
        return self.learns and (self.holdout > 0 or clients_evaluate(self.algorithm()))

    def check(self) -> None:
        """Raises ExperimentError where the experiment asks for what its algorithm does not have, or where a client's
        own model cannot be built: better now than on its board."""
        if not self.learns or self.experiment.models == [self.experiment.model]:
            return
        if not declaration_of(self.algorithm()).any_models:
            raise ExperimentError(
                f"fleet: its variants have models of their own, but '{self.experiment.algorithm.name}' has one model "
                "for all; leave their models out, or choose an algorithm of soft labels"
            )
        for model, learner in zip(self.experiment.models, self.prototypes, strict=True):
            try:
                _ = learner.parameters  # which builds the model, without memory for its numbers
            except ExperimentError as error:
                raise ExperimentError(f"{self._place(model)}: {error}") from None

    def _place(self, model: Model) -> str:
        """Where the experiment says that a client has this model."""
        lines = [(index, number) for index, line in enumerate(self.experiment.fleet)
                 for number, one in enumerate(line.variants) if one.model == model]  # fmt: skip
        return ".".join(["fleet", str(lines[0][0]), "variants", str(lines[0][1]), "model"]) if lines else "model"

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that are trained."""
        names: frozenset[str] = self._learner.parameters
        return names
