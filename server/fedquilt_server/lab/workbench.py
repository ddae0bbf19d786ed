"""The coordinator's part of an experiment: initial model, evaluation, and the digests that boards check."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedquilt_common.algorithm_api import (
    Learner,
    State,
    declaration_of,
    find_level,
    participation_problem,
    parts_to_try,
    pooling_problem,
    training_problem,
)
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.datasets.public import digest_public_set
from fedquilt_common.datasets.sensor_noise import check_inputs
from fedquilt_common.datasets.shares import take_samples
from fedquilt_common.errors import ExperimentError, PrivacyBudgetError
from fedquilt_common.experiment.memories import remembers
from fedquilt_common.experiment.sections import Model
from fedquilt_common.experiment.training_section import BatchAugment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.models import advise_against_batch_norm
from fedquilt_common.privacy.central_accountant import NoisyRounds, solve_central_noise
from fedquilt_common.privacy.promises import check_privacy
from fedquilt_common.process.cores import available_cores
from fedquilt_common.process.malloc import reuse_freed_memory
from fedquilt_common.secure_aggregation.packages import check_packages
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import Arrays, ClientId, Examples
from fedquilt_common.user_imports import is_user_import
from fedquilt_server.lab.private_shares import check_private_shares

if TYPE_CHECKING:
    from fedquilt_common.tracing.cost import Cost

ANY_PACKAGE = ("*",)
"""The coordinator's user names the packages in the experiment, so the coordinator may import all of them."""


@dataclass(frozen=True)
class Workbench(ExperimentTools):
    """What the coordinator derives from one experiment; a ``ServerTools``."""

    allowed_imports: Collection[str] = ANY_PACKAGE

    def is_evaluated(self, round: int) -> bool:
        """Whether the models are evaluated after this round; those of an experiment that learns nothing never are."""
        return self.learns and self.experiment.evaluates_after(round)

    @property
    def note(self) -> str:
        """Remarks on the data set and its noise that belong beside the results; empty if there are none."""
        return "; ".join(text for text in (self.dataset.note, *self._noise_notes()) if text) if self.learns else ""

    def _noise_notes(self) -> Iterator[str]:
        labels, sensors = self.experiment.data.label_noise, self.experiment.data.sensor_noise
        if labels is not None:
            changed = self.changed_labels
            yield f"{labels.kind} label noise changed {len(changed)} of {changed.drawn_from} training labels"
        if sensors is not None:
            yield f"sensor noise of {sensors.std:g} standard deviations, {100 * sensors.lost:g} % of readings lost"

    @cached_property
    def learner(self) -> Learner:
        """Trains and evaluates the experiment's model on the coordinator."""
        return self._learner_for(self.experiment.model)

    @cached_property
    def prototypes(self) -> Sequence[Learner]:
        """A learner for each different model that clients have, in the order of the clients."""
        return [self._learner_for(model) for model in self.experiment.models]

    def _learner_for(self, model: Model) -> Learner:
        return self.make_learner(model, self.experiment.training, evaluation_threads=available_cores())

    def prototype_of(self, client: ClientId) -> int:
        """Return the position in ``prototypes`` of a client's model."""
        return self.experiment.models.index(self.experiment.variant(client).model)

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that training changes; the others are buffers."""
        return self.learner.parameters

    def first_model(self) -> Arrays:
        """Build the initial global model from the run's seed.

        Returns:
            The model's parameters and buffers, fp32 or int64, in the model's shapes.
        """
        if not self.learns:
            from fedquilt_common.models.ballast import ballast

            return ballast(**self.experiment.model.params)
        return self.learner.init(self.model_seed)

    def global_models(self) -> Iterator[Arrays]:
        """Yield what the global model may be: the experiment's, and the clients' if theirs may differ."""
        yield self.first_model()
        if declaration_of(self.algorithm()).any_models:
            yield from (learner.init(self.model_seed) for learner in self.prototypes)

    def evaluate(self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None) -> dict[str, float]:
        """Score a model on the data set's test split.

        Args:
            arrays: in the shapes of the model or of ``part``.
            part: the sub-model that the arrays belong to; None: the whole model.
            learner: evaluates another model, such as one of ``prototypes``; None: the experiment's.

        Raises:
            ExperimentError: the clients train on the test split (``data.mixed``).
        """
        if self.experiment.data.mixed:
            raise ExperimentError(
                "data.mixed = True: the test split is shared out among the clients, so only they can evaluate; end "
                "the algorithm's round with `return (yield from evaluate_on_clients(state, ctx))`"
            )
        with reuse_freed_memory():
            return (learner or self.learner).evaluate(arrays, self.dataset.test, part=part)

    def sub_model_costs(self, state: State) -> dict[str, Cost]:
        """Return parameters and operations of the sub-models that clients trained in a round, by width or level.

        Args:
            state: of the round; its report has ``trained``, the width or level of each client. Parts of clients
                without one are left out.
        """
        from fedquilt_common.tracing.cost import cost_of

        levels = state.report.get("trained", {})
        used = {str(client): part for client, part in {**state.parts, **state.apart}.items()}
        parts = {str(levels[client]): part for client, part in used.items() if client in levels}
        return {level: cost_of(self.blueprint, part) for level, part in sorted(parts.items())}

    def partition_digest(self) -> str | None:
        """Return the SHA-256 of the partition, of the labels that noise changes, and of ``data.normalise``.

        Boards check their own partition with it. None without training.
        """
        return self.samples_digest() if self.learns and self.experiment.data.delivery != "own" else None

    def public_digest(self) -> str | None:
        """Return the SHA-256 of the public samples, with which boards check their own; None without a public set."""
        return digest_public_set(self.public) if self.learns and self.experiment.data.public is not None else None

    @cached_property
    def clients_evaluate(self) -> bool:
        """Whether the clients evaluate on their boards, on their own samples or with their own models."""
        return self.learns and (self.holdout > 0 or self.tests_on_official_samples)

    @cached_property
    def coordinator_evaluates(self) -> bool:
        """Whether the coordinator evaluates a global model, instead of the clients or beside them."""
        return self.learns and (not self.clients_evaluate or declaration_of(self.algorithm()).coordinator_tests)

    @cached_property
    def spare_test(self) -> Examples:
        """Samples for testing of the shares that no client has (``data.partition.shares``); there may be none."""
        index = np.zeros(0, np.int64)
        if self.holdout and self.experiment.data.delivery != "own":
            index = np.concatenate([index, *(share.test for share in self.all_shares[len(self.shares) :])])
        return take_samples(self.dataset, np.sort(index))

    def check(self) -> None:
        """Check learning task, noise, sampling, mosaics, privacy, and that the models can be used.

        The run then fails when it starts, not later on a board.

        Raises:
            ExperimentError: the algorithm cannot do the data set's learning task, the data set has no inputs for sensor
                noise, no classes to balance or no boxes for mosaics, a model cannot be used, or the clients'
                samples would not be private.
        """
        if self.learns:
            self._check_test_samples()
            self._check_task()
            self._check_sampling()
            self._check_trainings()
            check_privacy(self.experiment, self.algorithm(), self.learning_task.name, self.holdout)
            self._check_private_models()
            check_private_shares(self)
            self._check_central_privacy()
            self._check_secure_aggregation()
        if self.learns and self.experiment.data.sensor_noise is not None:
            check_inputs(self.dataset.train.x.dtype)
        if self.learns:
            self._check_models()

    @property
    def uses_sub_models(self) -> bool:
        """Whether clients may train sub-models of the experiment's model."""
        return self.learns and declaration_of(self.algorithm()).sub_models != "none"

    def _check_models(self) -> None:
        if self.experiment.models != [self.experiment.model]:
            self._check_own_models()
        for model in self.experiment.models:
            self.check_outputs(model, self.key_of(model))
        if self.experiment.algorithm.name in ALGORITHMS:  # a user's own may train no parameter of the model
            self._check_parameters()
        if self.uses_sub_models:
            self.check_sub_models()
            self._check_smallest()
            self._check_graph()
        self._check_levels()
        self._check_budgets()

    def _check_smallest(self) -> None:
        """Check that the smallest sub-models run: boards train them, and the coordinator evaluates them."""
        from fedquilt_common.tracing.dry_run import check_cut

        for part in parts_to_try(self.algorithm(), self.anatomy):
            if not part.is_full:
                check_cut(self._usual_builder, self.blueprint, self.dataset.train.x, part)

    def _check_graph(self) -> None:
        """Check that the traced graph computes what the model's own code does, if sub-models run it."""
        from fedquilt_common.tracing.graph_check import check_graph

        check_graph(self._usual_builder, self.blueprint, self.dataset.train.x)

    def _check_own_models(self) -> None:
        if not declaration_of(self.algorithm()).any_models:
            raise ExperimentError(
                f"fleet: its variants have models of their own, but '{self.experiment.algorithm.name}' has one model "
                "for all clients; remove the variants' models, or choose an algorithm of soft labels or fedproto"
            )
        for model, learner in zip(self.experiment.models, self.prototypes, strict=True):
            try:
                _ = learner.parameters  # builds the model without allocating its arrays
            except ExperimentError as error:
                raise ExperimentError(f"{self.key_of(model)}: {error}") from None

    def _check_parameters(self) -> None:
        for model, learner in zip(self.experiment.models, self.prototypes, strict=True):
            if not learner.parameters:
                raise ExperimentError(
                    f"{self.key_of(model)}.name = {model.name}: '{self.experiment.algorithm.name}' has nothing to "
                    "train, because no parameter of the model requires a gradient (requires_grad); choose another model"
                )

    def _check_levels(self) -> None:
        """Check that the algorithm has the levels that lines of the fleet name."""
        names = dict.fromkeys(name for line in self.experiment.fleet for name in line.fits or ())
        for name in names:
            find_level(self.algorithm(), name, self)

    def _check_budgets(self) -> None:
        """Check that boards choose what they train, if a line of the fleet limits it. A user's algorithm may ask."""
        chooses = hasattr(self.algorithm(), "find_level") or is_user_import(self.experiment.algorithm.name)
        for number, line in enumerate(self.experiment.fleet if not chooses else ()):
            if line.budget is not None:
                raise ExperimentError(
                    f"fleet.{number}.budget: with '{self.experiment.algorithm.name}' boards train what they receive, "
                    "whatever it needs; remove the key, or use adaptivefl"
                )

    def _check_private_models(self) -> None:
        for model in (variant.model for variant in self.experiment.variants if variant.privacy is not None):
            self.check_private_model(model, self.key_of(model))

    def _check_test_samples(self) -> None:
        if self.experiment.data.local_test == "own-labels" and self.learning_task.name != "classification":
            raise ExperimentError(
                f"data.local_test = 'own-labels': the data set '{self.dataset.name}' has no class for each sample; "
                "remove the key"
            )
        if lack := self.learning_task.find_lack(self.dataset.test.y):
            self._check_untested(lack)
        if self.holdout and self.experiment.data.delivery != "own" and not any(len(own.test) for own in self.shares):
            raise ExperimentError(
                f"data.holdout = {self.holdout:g}: no client keeps a sample for testing, because their shares are too "
                "small; use fewer clients"
            )

    def _check_untested(self, lack: str) -> None:
        """Check that no test needs the official test samples that the data set lacks.

        Raises:
            ExperimentError: the coordinator or the clients test on them.
        """
        declared, data = declaration_of(self.algorithm()), self.experiment.data
        if not self.coordinator_evaluates and not self.tests_on_official_samples:
            return
        who = "and clients test on them" if self.tests_on_official_samples else "on which the coordinator tests"
        if data.local_test == "own-labels":
            advice = "remove data.local_test and set data.holdout, such as 0.25"
        elif declared.coordinator_tests or declared.holdout is None:
            advice = "choose an algorithm whose clients test on their own samples, such as fedavg with data.holdout"
        else:
            advice = "set data.holdout, such as 0.25, so that each client keeps some for testing"
        if data.form is not None:
            raise ExperimentError(f"data.form has no test samples, {who}; give data.set instead of it, or {advice}")
        raise ExperimentError(f"data.set = {data.set}: it has no {lack}, {who}; give it some, or {advice}")

    @property
    def clients_remember(self) -> bool:
        """Whether what a client sends may depend on the rounds in which it was asked before."""
        declared = declaration_of(self.algorithm())
        return remembers(self.experiment, declared.private_memory, sends=declared.sends_memory)

    def _check_central_privacy(self) -> None:
        central, part = self.experiment.central_privacy, self.experiment.participation
        if central is None:
            return
        clients = part.per_round if self.clients_remember else self.experiment.data.clients
        whole = NoisyRounds(0.0, part.per_round, clients, self.experiment.rounds)
        try:
            solve_central_noise([], central.epsilon, central.delta, whole)
        except PrivacyBudgetError as error:
            raise ExperimentError(str(error)) from None
        name, others = self.experiment.model.name, sorted(set(self.first_model()) - self.parameters)
        if any(other.endswith("running_mean") for other in others):
            raise ExperimentError(
                f"model.name = {name}: it has statistics of its batch norm, which nothing clips. "
                f"{advise_against_batch_norm(name)}; or remove the section privacy"
            )
        if others:
            raise ExperimentError(
                f"model.name = {name}: training does not change its array '{others[0]}' (a frozen layer or a buffer), "
                "but the noise would. Choose a model whose arrays are all trained; or remove the section privacy"
            )

    def _check_secure_aggregation(self) -> None:
        if not self.experiment.secure_aggregation:
            return
        if reason := pooling_problem(self.algorithm()):
            raise ExperimentError(
                f"algorithm.name = {self.experiment.algorithm.name}: with secure aggregation, the coordinator receives "
                f"only the mean of the replies, but {reason}. Choose another one, or remove secure_aggregation"
            )
        check_packages()

    def _check_sampling(self) -> None:
        lines = self.experiment.fleet
        trainings = [self.experiment.training, *(variant.training for line in lines for variant in line.variants)]
        if self.learning_task.name != "detection" and any(training.mosaic for training in trainings):
            raise ExperimentError(
                f"training.mosaic: the data set '{self.dataset.name}' has no boxes, so its images cannot become "
                "mosaics; remove it, or choose a data set for detection, such as visdrone"
            )
        for augment in (training.augment for training in trainings if training.augment is not None):
            self._check_augment(augment)
        has_classes = self.learning_task.name == "classification"
        if not has_classes and any(training.sampling == "balanced" for training in trainings):
            raise ExperimentError(
                f"training.sampling = 'balanced': the data set '{self.dataset.name}' has no class for each sample, so "
                "there is nothing to balance; remove it, or choose a data set for classification"
            )

    def _check_trainings(self) -> None:
        """Check that the clients of a round, and the training of every client, suit the algorithm."""
        algorithm = self.algorithm()
        if problem := participation_problem(algorithm, self.experiment.participation.per_round):
            raise ExperimentError(problem)
        usual = training_problem(algorithm, self.experiment.training)
        for key, training in self.experiment.trainings():
            if problem := training_problem(algorithm, training):
                raise ExperimentError(f"{'training' if problem == usual else key}.{problem}")

    def _check_augment(self, augment: BatchAugment) -> None:
        shape, task = self.dataset.input_shape, self.learning_task.name
        if len(shape) != 3 or self.dataset.train.x.dtype.kind != "f" or task == "detection":
            reason = "has boxes, which would have to move" if task == "detection" else "has no images"
            raise ExperimentError(
                f"training.augment: the data set '{self.dataset.name}' {reason}; it needs images (channels, height, "
                "width) of floating-point numbers and one label for each. Remove the key"
            )
        if augment.crop >= min(shape[1:]):
            raise ExperimentError(
                f"training.augment.crop = {augment.crop}: the images are {shape[1]} x {shape[2]}, so some crops would "
                "be all black; choose a smaller one, such as 4"
            )

    def _check_task(self) -> None:
        possible, task = declaration_of(self.algorithm()).tasks, self.learning_task.name
        if possible is not None and task not in possible:
            raise ExperimentError(
                f"algorithm.name = {self.experiment.algorithm.name}: it is made for {', '.join(sorted(possible))}, but "
                f"the task of the data set '{self.dataset.name}' is {task}; choose another algorithm, such as fedavg, "
                "or another data set"
            )

    def key_of(self, model: Model) -> str:
        """Return the key of the experiment file that gives clients this model."""
        keys = [f"fleet.{index}.variants.{number}.model" for index, line in enumerate(self.experiment.fleet)
                for number, variant in enumerate(line.variants) if variant.model == model]  # fmt: skip
        return keys[0] if keys else "model"
