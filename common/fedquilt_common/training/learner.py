"""The learner for torch modules: trains and evaluates a model whose numbers are passed as numpy arrays.

``sgd_loop`` has the steps of training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from fedquilt_common.algorithm_api import BatchLoss, Loss, OutputViews, Penalty, TrainingPhase, TrainingResult
from fedquilt_common.algorithm_api.learner import deepest_exit
from fedquilt_common.errors import DataUnavailableError, ExperimentError, TrainingDivergedError
from fedquilt_common.learning_tasks import LearningTask, ScoreCounts, add_counts
from fedquilt_common.models.static_norm import StaticBatchNorm, list_statistics
from fedquilt_common.rejections import first_problem
from fedquilt_common.submodels.heads import Head, TwoHeads, head_names
from fedquilt_common.tracing.building import build_on_meta, build_to_load
from fedquilt_common.tracing.generators import use_seed
from fedquilt_common.tracing.heads import FoundHead, TwoHeaded, find_heads, head_module, list_heads, watch_features
from fedquilt_common.tracing.outputs import example_batch
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.training.evaluation_batches import evaluation_batches, statistics_batches
from fedquilt_common.training.forward_passes import ForwardPasses, prepare_passes
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.training.losses import at_deepest_output
from fedquilt_common.training.memory_layout import choose_layout, evaluated_form
from fedquilt_common.training.module_arrays import load_arrays, to_arrays
from fedquilt_common.training.precision import choose_arithmetic, evaluation_device, keep_kernels, widen_halves
from fedquilt_common.training.private_phases import charge_phases, check_buffers, make_module_private, secret_seed
from fedquilt_common.training.sgd_loop import SgdLoop, check_all_finite, divergence_advice, trainable_parameters
from fedquilt_common.training.training_checks import check_only, check_schedule
from fedquilt_common.types import Arrays, Examples, OptimiserName, Progress

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api import Part
    from fedquilt_common.algorithm_api.learner import Outputs
    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.privacy.meter import PrivacyMeter
    from fedquilt_common.submodels.slices import Slice
    from fedquilt_common.tracing.trace import Blueprint

# Shuffling and dropout draw from two streams, which must differ.
_DROPOUT_STREAM = 0x5DEECE66D


@dataclass(frozen=True)
class TorchLearner:
    """A ``Learner`` for torch modules; ``Learner`` documents the methods in full.

    Attributes:
        build: returns a new module each time.
        training: the experiment's section of that name.
        task: gives the loss of phases that name none, and the scores.
        on_progress: called after each training step with the finished part of the training, from 0 to 1.
        blueprint: returns how sub-models are cut from the model; None: ``part`` must not be a cut sub-model.
        lasting: optimisers that outlive a training. None: each training starts with new ones.
        meter: charges training on samples that are not public, and makes it private; None: training is not private.
        threads: batches of an evaluation that a processor computes at a time; no result depends on it.
        black: what black is in the samples, of a shape that broadcasts to (channels, 1, 1).
        samples: returns samples in the shape and dtype of the model's; their numbers do not matter. With it, a model
            whose head alone can be traced has a head, too.
        origin: a learner that differs in ``training`` and ``lasting`` only. It keeps what follows from the module,
            because to trace a large one takes half a second; None: this one keeps it.
    """

    build: Callable[[], nn.Module]
    training: Training
    task: LearningTask
    on_progress: Progress | None = None
    blueprint: Callable[[], Blueprint] | None = None
    lasting: LastingOptimisers | None = None
    meter: PrivacyMeter | None = None
    threads: int = 1
    black: NDArray[Any] = field(default_factory=lambda: np.zeros(1, np.float32))
    samples: Callable[[], NDArray[Any]] | None = None
    origin: TorchLearner | None = None

    @property
    def augments(self) -> bool:
        """Whether training changes images at random: ``training.augment``."""
        return self.training.augment is not None

    def init(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return initial parameters and buffers in the model's shapes and dtypes; the same for the same ``seed``."""
        return to_arrays(self._build(seed))

    def with_settings(self, **changes: Any) -> TorchLearner:
        """Return the same learner with other settings; arguments and errors are those of ``Learner.with_settings``."""
        plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in changes.items()}
        try:
            training = type(self.training).model_validate(self.training.model_dump() | plain)
        except ValidationError as error:
            raise ExperimentError(f"with_settings: {first_problem(error)}") from None
        return self._with_training(training)

    def at_round(self, round: int) -> TorchLearner:
        """Return the same learner with the learning rate of a round, from 1; round 0 has that of round 1."""
        training = self.training.at_round(max(round, 1))
        return self if training == self.training else self._with_training(training)

    def _with_training(self, training: Training) -> TorchLearner:
        lasting = self.lasting if training.keep_optimiser else None
        return replace(self, training=training, lasting=lasting, origin=self.origin or self)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the arrays that training changes; the model's other arrays are buffers, or frozen."""
        if self.origin is not None:
            return self.origin.parameters
        return frozenset(trainable_parameters(build_on_meta(self.build)))

    @property
    def epochs(self) -> int:
        """Passes over a client's samples in a round: the experiment's ``training.epochs``."""
        return self.training.epochs

    @property
    def lr(self) -> float:
        """Learning rate: ``training.lr`` of this round."""
        return self.training.lr

    @property
    def momentum(self) -> float:
        """Momentum of SGD, in [0, 1); 0 for other optimisers."""
        return self.training.momentum

    @property
    def weight_decay(self) -> float:
        """Weight decay, 0 or more."""
        return self.training.weight_decay

    @property
    def batch(self) -> int:
        """Samples in a batch; the last one of an epoch may have fewer."""
        return self.training.batch

    @property
    def optimiser(self) -> OptimiserName:
        """Name of the optimiser, such as ``sgd`` or ``adam-keras``."""
        return self.training.optimiser

    def head(self, layers: int) -> Sequence[str]:
        """Return the names of the arrays of the last ``layers`` linear layers, in the model's order.

        Raises:
            ExperimentError: the model has fewer linear layers on top of a base with parameters.
            UncuttableModelError: the model cannot be traced, and there are no ``samples``.
        """
        return head_names(self._heads, layers)

    @cached_property
    def _heads(self) -> tuple[tuple[str, ...], ...]:
        if self.origin is not None:
            return self.origin._heads
        return list_heads(lambda: self._build(0), None if self.samples is None else self.samples())

    def train(
        self,
        arrays: Arrays,
        data: Examples,
        *,
        seed: int,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        part: Part | None = None,
        only: Collection[str] | None = None,
        epochs: int | None = None,
        public: bool = False,
        batch_loss: BatchLoss | None = None,
    ) -> TrainingResult:
        """Train one phase with ``train_in_turn``; shapes, result and errors are those of ``Learner.train``."""
        phase = TrainingPhase(data, loss, only, penalty, public=public, batch_loss=batch_loss)
        epochs = self.epochs if epochs is None else epochs
        if epochs < 1:
            raise ExperimentError(
                f"epochs = {epochs}: an algorithm must train for 1 epoch or more; with 0, it must not call `train`"
            )
        return self.train_in_turn(arrays, [phase], [0] * epochs, seed=seed, part=part)

    @keep_kernels()
    def train_in_turn(
        self,
        arrays: Arrays,
        phases: Sequence[TrainingPhase],
        schedule: Sequence[int],
        *,
        seed: int,
        part: Part | None = None,
    ) -> TrainingResult:
        """Train phases epoch by epoch; shapes, result and errors are those of ``Learner.train_in_turn``."""
        started = time.perf_counter()
        check_schedule(schedule, len(phases))
        for phase in phases:
            self._check_samples(phase.data)
            check_only(phase.only, arrays, part)
        loop = self._prepare_loop(arrays, phases, schedule, seed, part)
        with use_seed(secret_seed(loop.plans, seed ^ _DROPOUT_STREAM)):
            mean_loss, steps = loop.run(phases, schedule, seed)
        check_all_finite(loop.module, steps, self.training)
        if self.lasting is not None and loop.lasting is not None:
            self.lasting.end(loop.lasting)
        loop.module.zero_grad()  # frees as much as the conversion of halves to fp32 needs
        trained = to_arrays(loop.module)
        if loop.plans:
            check_buffers(loop.module, arrays, trained)
        return TrainingResult({name: trained[name] for name in arrays}, mean_loss, time.perf_counter() - started, steps)

    def _prepare_loop(
        self, arrays: Arrays, phases: Sequence[TrainingPhase], schedule: Sequence[int], seed: int, part: Part | None
    ) -> SgdLoop:
        """Return the loop that trains; privacy is charged from here on."""
        optimisers = self.lasting.begin(part) if self.lasting is not None else None
        arithmetic = choose_arithmetic(self.training)
        plans = charge_phases(self.meter, self.training, phases, schedule, arrays)
        module = self._load(arrays, seed, part, training=True)
        x = phases[0].data.x
        takes_any_form = hasattr(module, "training_loss") and all(phase.loss is None for phase in phases)
        form = None if takes_any_form else evaluated_form(module, x)
        module, layout = make_module_private(module, x) if plans else (module, choose_layout(module, x))
        features = self._watch_head(module, part) if any(phase.batch_loss for phase in phases) else []
        module = arithmetic.place(module)
        layout.order_weights(module)
        return SgdLoop(
            module, arithmetic, self.training, self._default_loss(module), self._to_targets, self.on_progress,
            optimisers, plans, layout, features, self.black, form,
        )  # fmt: skip

    def _watch_head(self, module: nn.Module, part: Part | None) -> list[Tensor]:
        """Return a list to which each forward pass of a module appends the input of its last linear layer."""
        if isinstance(part, Head | TwoHeads):
            raise ValueError("batch_loss needs the features of the whole model: train it, or a sub-model")
        self.head(1)  # raises ExperimentError if there is none
        return watch_features(module, self._find_heads(module)[0])

    def evaluate(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, float]:
        """Score the model in fp32; shapes, result and errors are those of ``Learner.evaluate``."""
        return self.task.scores(*self.count(arrays, data, part))

    def count(
        self, arrays: Arrays, data: Examples, part: Part | None = None, views: OutputViews = deepest_exit
    ) -> list[ScoreCounts]:
        """Compare the model's outputs with the labels in fp32; shapes and errors are those of ``Learner.count``."""
        self._check_samples(data)

        def count(batch: slice, outputs: Outputs) -> list[ScoreCounts]:
            return [self.task.count(view, self.task.targets(data.y[batch])) for view in views(outputs)]

        passes = self._passes(self._load(arrays, 0, part), data)
        totals: list[ScoreCounts] = []
        for counts in passes.run(data, evaluation_batches(data), count):
            totals = [add_counts(pair) for pair in zip(totals, counts, strict=True)] if totals else counts
        return totals

    def predict(self, arrays: Arrays, data: Examples, part: Part | None = None) -> list[NDArray[np.float32]]:
        """Return float32 outputs, such as logits; shapes and errors are those of ``Learner.predict``."""
        passes = self._passes(self._load(arrays, 0, part), data)
        batches = passes.run(data, evaluation_batches(data), lambda _, outputs: outputs)
        return [np.concatenate(output) for output in zip(*batches, strict=True)]

    def features(self, arrays: Arrays, data: Examples, head_layers: int) -> Examples:
        """Return float32 features; shapes and errors are those of ``Learner.features``."""
        self._check_samples(data)
        self.head(head_layers)  # raises if there is none
        module = self._load(arrays, 0, None)
        passes = self._passes(module, data)
        features = watch_features(module, self._find_heads(module)[head_layers - 1])
        passes.run_all(data, evaluation_batches(data))
        return Examples(np.concatenate([tensor.cpu().numpy() for tensor in features]), data.y)

    def feature_extractor(self, arrays: Arrays, head_layers: int) -> Callable[[Tensor], Tensor]:
        """Return a function of a batch's samples; shapes and errors are those of ``Learner.feature_extractor``."""
        self.head(head_layers)  # raises if there is none
        module = self._load(arrays, 0, None)
        features = watch_features(module, self._find_heads(module)[head_layers - 1])

        def extract(samples: Tensor) -> Tensor:
            # `explain_unsupported` repeats a step in fp32, so the samples decide, not the experiment's precision.
            module.to(samples.device, samples.dtype if samples.is_floating_point() else None)
            with torch.no_grad():
                module(samples)
            found = features[-1]
            features.clear()
            return widen_halves(found)

        return extract

    def statistics(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, NDArray[Any]]:
        """Measure the static batch norms' means and variances in one pass over ``data`` (HeteroFL, section 3).

        They are those of all samples together (``StaticBatchNorm``). The statistics in ``arrays`` do not matter. Raises
        as ``evaluate``, and ``TrainingDivergedError`` if one is not finite.

        Returns:
            ``running_mean`` and ``running_var`` of each such norm by name, float32 of shape (channels,). Empty for a
            model that has none.
        """
        self._check_samples(data)
        if self.meter is not None:
            raise ExperimentError(
                "with `privacy`, statistics of a client's samples stay on its board; choose another model"
            )
        module = self._load(arrays, 0, part)
        passes = self._passes(module, data)
        norms = [part for part in module.modules() if isinstance(part, StaticBatchNorm)]
        for norm in norms:
            norm.start_collecting()
        passes.run_all(data, statistics_batches(data) if norms else [])
        arrays = to_arrays(module)
        measured = {name: arrays[name] for name in list_statistics(module)}
        for name, values in measured.items():
            if not np.isfinite(values).all():
                raise TrainingDivergedError(
                    f"the statistics '{name}' are not finite; {divergence_advice(self.training)}"
                )
        return measured

    def _passes(self, module: nn.Module, data: Examples) -> ForwardPasses:
        return prepare_passes(module, data, evaluation_device(self.training), self.threads)

    def _build(self, seed: int) -> nn.Module:
        with use_seed(seed):
            return self.build()

    def _build_to_load(self, seed: int) -> nn.Module:
        with use_seed(seed):
            return build_to_load(self.build)

    def _load(self, arrays: Arrays, seed: int, part: Part | None, *, training: bool = False) -> nn.Module:
        """Build the model, or ``part`` of it, with the numbers of ``arrays``."""
        module = self._build_part(seed, part, training).train(training)
        load_arrays(module, arrays)
        return module

    def _build_part(self, seed: int, part: Part | None, training: bool) -> nn.Module:
        if isinstance(part, Head | TwoHeads):
            module = self._build_to_load(seed).train(training)
            head = self._find_heads(module)[part.layers - 1]
            return head_module(module, head) if isinstance(part, Head) else TwoHeaded(module, head, part)
        if part is None or part.is_full or self.blueprint is None:
            return self._build_to_load(seed)
        return cut_module(self.build, self.blueprint(), part)

    def _find_heads(self, module: nn.Module) -> tuple[FoundHead, ...]:
        """Find the heads again each time, because functional dropout in their graphs depends on the mode."""
        return find_heads(module, None if self.samples is None else example_batch(self.samples()))

    def _default_loss(self, module: nn.Module) -> Loss:
        """Return the model's own loss, ``training_loss``, or that of the learning task at the deepest exit."""
        own: Loss | None = getattr(module, "training_loss", None)
        return own if own is not None else at_deepest_output(self.task.loss)

    def _to_targets(self, y: NDArray[Any]) -> Tensor:
        return torch.from_numpy(self.task.targets(y))

    def _check_samples(self, data: Examples) -> None:
        if len(data) == 0:
            raise DataUnavailableError(
                "there are no samples to train on or to evaluate on; give each client at least one"
            )
        if len(data.x) != len(data.y):
            raise DataUnavailableError(
                f"{len(data.x)} samples have {len(data.y)} labels; each sample needs one, so repair the data set"
            )
        self.task.check(data.y)
