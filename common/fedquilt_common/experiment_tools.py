"""What an experiment file stands for: its algorithm, data set, partition, public set, models and learners.

Coordinator and boards build these from the same code, so both sides get the same samples and models.
The data set and torch are loaded when they are first used; a process that only waits stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Algorithm, declaration_of, loss_problem
from fedquilt_common.algorithms import DIAGNOSTICS, make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.label_noise import ChangedLabels
from fedquilt_common.datasets.normalise import normalise_dataset, normalise_samples, normalised_black
from fedquilt_common.datasets.public import public_set
from fedquilt_common.datasets.sensor_noise import add_sensor_noise
from fedquilt_common.datasets.shard_files import DatasetForm, Shard
from fedquilt_common.datasets.shares import (
    Share,
    changed_labels,
    clients_evaluate,
    digest_shares,
    holdout_of,
    select_own_labels,
    shares,
    take_samples,
)
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import OWN, Data
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.sections import Model
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import LearningTask, make_learning_task
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.submodels.wholeness import require_groups
from fedquilt_common.types import ClientId, Dataset, Examples

if TYPE_CHECKING:
    from fedquilt_common.privacy.meter import PrivacyMeter
    from fedquilt_common.tracing.trace import Blueprint
    from fedquilt_common.training.lasting_optimisers import LastingOptimisers
    from fedquilt_common.training.learner import TorchLearner


def _read_form(data: Data) -> DatasetForm | None:
    """Return the form that the experiment gives to the boards' own samples; None if it names a data set."""
    if data.form is None:
        return None
    labels = ((), "int64") if data.form.classes else ((data.form.outputs,), "float32")
    return DatasetForm(OWN, data.form.shape, data.form.dtype, data.form.classes, data.form.task or "", *labels)


@dataclass(frozen=True)
class ExperimentTools:
    """The algorithm, data and models of one experiment, each loaded when it is first used.

    Args:
        experiment: the validated experiment file.
        allowed_imports: packages that names such as ``package:factory`` may load code from; ``*`` allows all.
        form: what the samples look like, on a board that does not have the data set; None: it has it.
    """

    experiment: Experiment
    allowed_imports: Collection[str]
    form: DatasetForm | None = None

    @property
    def learns(self) -> bool:
        """Whether the experiment trains a model; the diagnostics of ``fedquilt bench`` do not."""
        return self.experiment.algorithm.name not in DIAGNOSTICS

    def algorithm(self) -> Algorithm:
        """Build the algorithm with the hyper-parameters of the experiment, a new object at each call."""
        choice = self.experiment.algorithm
        return make_algorithm(choice.name, choice.fields, self.allowed_imports)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set with its official training and test samples; without any if only its form is given.

        Raises:
            DataUnavailableError: its files are missing or damaged.
            ExperimentError: ``data.normalise`` does not suit the samples.
        """
        return normalise_dataset(self.raw_dataset, self.experiment.data.normalise)

    @cached_property
    def raw_dataset(self) -> Dataset:
        """The data set before ``data.normalise``, as partitions and deliveries take it. Raises as ``dataset``."""
        form = self.form or _read_form(self.experiment.data)
        if form is not None:
            return form.without_samples()
        return load_dataset(self.experiment.data.set, None, self.allowed_imports)

    @property
    def classes(self) -> int:
        """Number of classes of the data set; 0 for regression, or without training."""
        return self.dataset.classes if self.learns else 0

    @cached_property
    def learning_task(self) -> LearningTask:
        """What the model learns to do, from the data set.

        Raises:
            UnknownNameError: there is no task of the name that the data set gives.
            DataUnavailableError: the data set's labels are not those of its task.
        """
        return make_learning_task(self.dataset)

    @cached_property
    def holdout(self) -> float:
        """The share of its samples, in [0, 1), that each client keeps for testing.

        Raises:
            ExperimentError: the algorithm does not support ``data.holdout`` or ``data.mixed``.
        """
        return holdout_of(self.experiment, self.algorithm()) if self.learns else 0.0

    @cached_property
    def tests_on_official_samples(self) -> bool:
        """Whether clients test on official test samples: with ``own-labels``, or if they keep none and must test."""
        if not self.learns or self.holdout:
            return False
        algorithm = self.algorithm()
        must = clients_evaluate(algorithm) or declaration_of(algorithm).tests_updates
        return self.experiment.data.local_test == "own-labels" or must

    def select_test(self, official: Examples, labels: NDArray[Any]) -> Examples:
        """Return those of the official test samples that a client tests on: all, or those of its classes.

        Args:
            official: the official test samples.
            labels: of the client's training samples.
        """
        own_labels = self.experiment.data.local_test == "own-labels"
        return select_own_labels(official, labels) if own_labels else official

    @cached_property
    def shares(self) -> Sequence[Share]:
        """The partition: one share of the samples for each client, in client order. Raises as ``all_shares``."""
        return self.all_shares[: self.experiment.data.clients]

    @cached_property
    def all_shares(self) -> Sequence[Share]:
        """The shares of the clients, then those that no client has (``data.partition.shares``).

        Raises:
            ExperimentError: the data set cannot be partitioned as ``data.partition`` requires, or the boards have the
                clients' samples themselves.
        """
        self.require_samples()
        return shares(self.experiment, self.raw_dataset, self.holdout, self.allowed_imports)

    def require_samples(self) -> None:
        """Refuse an experiment whose samples only the boards have.

        Raises:
            ExperimentError: they do.
        """
        if self.experiment.data.delivery == "own":
            raise ExperimentError(
                "data.delivery = own: the clients' samples never leave their boards, so they are not here; choose "
                "another experiment, or another delivery"
            )

    @cached_property
    def changed_labels(self) -> ChangedLabels:
        """The wrong labels of ``data.label_noise``; none without it.

        Raises:
            ExperimentError: the data set has no classes, or too few labels can change.
            DataUnavailableError: the file of the matrix is missing or wrong.
        """
        return changed_labels(self.experiment, self.dataset, self.shares)

    def samples_digest(self) -> str:
        """Return the SHA-256, in hex, of the partition, of the labels that noise changes, and of ``data.normalise``."""
        return digest_shares(self.shares, self.changed_labels, self.experiment.data.normalise)

    def normalise(self, examples: Examples) -> Examples:
        """Return samples with ``data.normalise``, as ``dataset`` has them. Raises ``ExperimentError`` as it."""
        return Examples(normalise_samples(examples.x, self.experiment.data.normalise), examples.y)

    def training_samples(self, client: ClientId) -> Examples:
        """Return the samples that a client trains on, with the noise of ``data.label_noise`` and ``data.sensor_noise``.

        Raises:
            ExperimentError: the partition or the noise does not suit the data set.
        """
        return self.add_sensor_noise(client, self.shard(client).train)

    def shard(self, client: ClientId) -> Shard:
        """Return a client's samples with the noise of ``data.label_noise``, but without that of ``data.sensor_noise``.

        Raises:
            ExperimentError: the partition or the noise does not suit the data set.
        """
        share = self.shares[client]
        clean = take_samples(self.dataset, share.train)
        train = Examples(clean.x, self.changed_labels.apply(share.train, clean.y))
        return Shard(train, take_samples(self.dataset, share.test))

    def add_sensor_noise(self, client: ClientId, train: Examples) -> Examples:
        """Return a client's training samples with the noise of ``data.sensor_noise``.

        Args:
            client: its number, which determines the noise.
            train: its training samples, of shape (n, *input_shape).
        """
        noise = self.experiment.data.sensor_noise
        if noise is None:
            return train
        seed = derive_seed(self.experiment.seed, "sensor noise", client)
        return Examples(add_sensor_noise(np.asarray(train.x), noise, seed), train.y)

    @cached_property
    def public(self) -> NDArray[Any]:
        """The public set that coordinator and boards share, shape (n, *input_shape), in the data set's dtype.

        Raises:
            ExperimentError: the experiment has no public set, or it does not fit the data set.
            DataUnavailableError: its files are missing or damaged.
        """
        public = np.asarray(normalise_samples(self.raw_public, self.experiment.data.normalise))
        public.setflags(write=False)
        return public

    @cached_property
    def raw_public(self) -> NDArray[Any]:
        """The public set before ``data.normalise``, as it is delivered. Raises as ``public``."""
        return public_set(self.experiment, self.raw_dataset, self.allowed_imports)

    def model_builder(self, model: Model) -> Callable[[], Any]:
        """Return a function that builds ``model`` for the data set, a new ``torch.nn.Module`` at each call.

        Raises:
            ExperimentError: there is no such model, or it does not take these parameters.
        """
        from fedquilt_common.models import build_model

        data = self.dataset
        return build_model(
            model.name, model.params, data.input_shape, data.classes, self.allowed_imports, model.initialisation
        )

    def check_private_model(self, model: Model, key: str) -> None:
        """Check the model of a client with local differential privacy. Arguments as ``check_outputs``.

        Raises:
            ExperimentError: it mixes samples, or it cannot be built.
        """
        from fedquilt_common.models import advise_against_batch_norm
        from fedquilt_common.models.norms import find_mixing_norm
        from fedquilt_common.tracing.building import build_on_meta
        from fedquilt_common.tracing.layer_kinds import is_known
        from fedquilt_common.tracing.mixing import mixes_samples

        build = self.model_builder(model)
        module = build_on_meta(build)
        why, advice = "what it returns for a sample depends on the others of the batch", "Choose another model"
        if norm := find_mixing_norm(module):
            why, advice = f"its {norm} mixes samples", advise_against_batch_norm(model.name, key)
        elif is_known(module) or not mixes_samples(build(), self.dataset.train.x):
            return
        raise ExperimentError(
            f"{key}.name = {model.name}: {why}, so what it reveals of one sample cannot be bounded. {advice}; or "
            "remove the section privacy"
        )

    def check_outputs(self, model: Model, key: str) -> None:
        """Check that a model runs on the data set's samples, and returns the same outputs in both of its modes.

        Args:
            model: the model.
            key: of the experiment file that gives clients this model.

        Raises:
            ExperimentError: it does not, and has no loss of its own that explains different outputs; or the learning
                task does not suit such outputs, or the algorithm a loss of the model's own.
        """
        from fedquilt_common.tracing.outputs import check_outputs

        name, train, task = f"{key}.name = {model.name}", self.dataset.train, self.learning_task
        found = check_outputs(self.model_builder(model), train.x, name)
        problem = loss_problem(self.algorithm(), task) if found.own_loss else ""
        if problem := problem or task.find_output_problem(found.evaluated, train.y, own_loss=found.own_loss):
            more = f". It returns {len(found.evaluated)} outputs: the last one is evaluated"
            raise ExperimentError(f"{name}: {problem}{more * (len(found.evaluated) > 1)}")

    def warn_about_outputs(self, model: Model, key: str) -> str:
        """Return that a model trains or tests an unexpected output; empty if not. Arguments as ``check_outputs``."""
        from fedquilt_common.tracing.outputs import warn_about_outputs

        return warn_about_outputs(self.model_builder(model), self.dataset.train.x, f"{key}.name = {model.name}")

    @cached_property
    def _usual_builder(self) -> Callable[[], Any]:
        return self.model_builder(self.experiment.model)

    @cached_property
    def blueprint(self) -> Blueprint:
        """How sub-models are cut from the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """
        from fedquilt_common.tracing.trace import blueprint_for

        return blueprint_for(self._usual_builder, self.dataset.train.x)

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """
        return self.blueprint.anatomy

    @property
    def model_seed(self) -> int:
        """The seed from which ``Learner.init`` makes the initial global model."""
        return derive_seed(self.experiment.seed, "model")

    def check_sub_models(self) -> None:
        """Check that sub-models can be cut from the experiment's model, differ from it, and run.

        Raises:
            UncuttableModelError: they cannot, do not or do not run.
        """
        from fedquilt_common.tracing.dry_run import check_cut

        require_groups(self.anatomy)
        check_cut(self._usual_builder, self.blueprint, self.dataset.train.x)

    def warn_about_norms(self) -> str:
        """Return why the norms of the experiment's model do not suit sub-models; empty if they do."""
        from fedquilt_common.models import warn_about_running_norm
        from fedquilt_common.models.norms import find_running_norm
        from fedquilt_common.tracing.building import build_on_meta

        norm = find_running_norm(build_on_meta(self._usual_builder))
        if norm is None:
            return ""
        measures = declaration_of(self.algorithm()).measures_norms
        return warn_about_running_norm(self.experiment.model.name, norm, measures_norms=measures)

    def warn_about_static_norms(self, model: Model, key: str) -> str:
        """Return that nothing measures a model's static norms; empty if not. Arguments as ``check_outputs``."""
        from fedquilt_common.models import warn_about_static_norm
        from fedquilt_common.models.norms import has_static_norm
        from fedquilt_common.tracing.building import build_on_meta

        declared, name = declaration_of(self.algorithm()), self.experiment.algorithm.name
        if declared.measures_norms or not has_static_norm(build_on_meta(self.model_builder(model))):
            return ""
        return warn_about_static_norm(model.name, name, key, averages_sub_models=declared.sub_models == "averaged")

    def make_learner(
        self,
        model: Model,
        training: Training,
        *,
        threads: int = 1,
        evaluation_threads: int | None = None,
        on_progress: Callable[[float], None] | None = None,
        meter: PrivacyMeter | None = None,
        lasting: LastingOptimisers | None = None,
    ) -> TorchLearner:
        """Build a learner; only one for the experiment's own model can train sub-models.

        Args:
            model: the model that it trains and evaluates.
            training: the settings of its training.
            threads: number of CPU threads for torch in this process.
            evaluation_threads: batches that it evaluates at a time; no result depends on it. None: ``threads``.
            on_progress: called after each training step with the part that is done, in [0, 1].
            meter: charges training on private samples, and makes it private; None: training is not private.
            lasting: optimisers that outlive a training; None: each training starts with new ones.
        """
        from fedquilt_common.training.learner import TorchLearner
        from fedquilt_common.training.torch_setup import set_up_torch

        set_up_torch(threads)
        build, blueprint = self.model_builder(model), None
        if model == self.experiment.model:
            build, blueprint = self._usual_builder, lambda: self.blueprint
        black = normalised_black(self.dataset.input_shape, self.experiment.data.normalise)
        return TorchLearner(
            build, training, self.learning_task, on_progress, blueprint, lasting, meter, evaluation_threads or threads,
            black, lambda: self.dataset.train.x,
        )  # fmt: skip
