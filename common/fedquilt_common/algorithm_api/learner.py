"""Training and evaluation of a model, as an algorithm uses them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedquilt_common.types import Arrays, Examples, OptimiserName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedquilt_common.learning_tasks.learning_task import ScoreCounts
    from fedquilt_common.submodels.heads import Head, TwoHeads
    from fedquilt_common.submodels.slices import Slice

    Part: TypeAlias = Slice | Head | TwoHeads
    """A part of a model that is trained or evaluated as a model of its own."""

    Outputs: TypeAlias = Sequence[NDArray[np.float32]]
    """Outputs of a batch, float32 with n rows: one array for each head or exit, the deepest last."""

OutputViews = Callable[["Outputs"], "Outputs"]
"""Derives from the outputs of a model those that are counted, such as the sum of two heads' logits."""


def deepest_exit(outputs: Outputs) -> Outputs:
    """Return the outputs of the deepest exit alone.

    Args:
        outputs: one array or tensor for each exit, each of shape (n, classes), the deepest last.
    """
    return outputs[-1:]


class Loss(Protocol):
    """Minimised instead of the learning task's loss; a function, or an object that can be called."""

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of one batch as a scalar tensor that has a gradient.

        Args:
            outputs: the model's float32 outputs, such as logits of shape (n, classes); for a model with several exits
                or heads, a list of them.
            targets: what the learning task makes of the labels: int64 classes of shape (n,), or float32 of shape
                (n, outputs) for regression and soft labels.
        """


@dataclass(frozen=True)
class Batch:
    """A batch in training, as a ``BatchLoss`` receives it. All tensors are on the device that trains.

    Attributes:
        loss: what training would minimise without the ``BatchLoss``: a scalar tensor that has a gradient.
        outputs: as ``Loss`` receives them.
        targets: as ``Loss`` receives them.
        features: what the base passes to the model's last linear layer, float32 of shape (n, inputs of the layer), with
            a gradient. They are of the same forward pass as the outputs, so dropout and batch statistics apply.
        samples: the model's input, of shape (n, *input_shape), in the number format of the training.
        positions: where the samples are in the phase's data, int64 of shape (n,).
    """

    loss: Any
    outputs: Any
    targets: Any
    features: Any
    samples: Any
    positions: Any


class BatchLoss(Protocol):
    """A loss that depends on features or samples too; a function, or an object that can be called."""

    def __call__(self, batch: Batch) -> Any:
        """Return the loss of one batch as a scalar tensor that has a gradient.

        To compare features with those of other models, compute these once with ``Learner.features``, and look them up
        with ``batch.positions``. Where ``Learner.augments``, the samples of each epoch differ: compute the features of
        ``batch.samples`` with ``Learner.feature_extractor``.

        Args:
            batch: its samples, and what the model makes of them.
        """


class Penalty(Protocol):
    """Added to the loss of each batch; a function, or an object that can be called."""

    def __call__(self, now: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        """Return the penalty as a scalar tensor that has a gradient.

        Args:
            now: all parameters by name, as tensors in the model's shapes.
            start: the same parameters as they were before training, without gradients.
        """


@dataclass(frozen=True)
class TrainingResult:
    """What training returns.

    Attributes:
        arrays: the trained arrays, in the shapes of those that training started from. Floating-point numbers are
            float32; integer buffers keep their dtype.
        loss: mean over the samples of the last epoch, without the penalty.
        seconds: wall-clock time of the training.
        steps: number of optimiser steps.
    """

    arrays: Arrays
    loss: float
    seconds: float
    steps: int


@dataclass(frozen=True)
class TrainingPhase:
    """Training on one data set with an optimiser of its own; see ``Learner.train_in_turn``.

    Attributes:
        data: the samples to train on; ``x`` has shape (n, *input_shape).
        loss: minimised instead of the loss of the model or of the learning task.
        only: names of the parameters to train; None: all. Names of buffers and of frozen parameters may be among them,
            but are not trained. With a sub-model, names of the whole model may be among them, too.
        penalty: added to the loss of each batch.
        anneal: lower the learning rate to 0 along half a cosine.
        watch: samples that are not trained on, such as ``data`` in shape. Training stops when ``patience`` epochs in a
            row have not lowered their loss, and returns the arrays with the lowest. Not where training is private.
        patience: epochs without improvement, 1 or more; used with ``watch`` only.
        public: whether ``data`` reveals nothing of a client's own samples, so that training on it spends no privacy.
        batch_loss: minimised instead of ``loss``, which it receives as ``Batch.loss``. Not with ``watch``, and not
            where training is private: such a loss has no gradient of a single sample.

    Raises:
        ValueError: both ``watch`` and ``batch_loss`` are given.
    """

    data: Examples
    loss: Loss | None = None
    only: Collection[str] | None = None
    penalty: Penalty | None = None
    anneal: bool = False
    watch: Examples | None = None
    patience: int = 1
    public: bool = False
    batch_loss: BatchLoss | None = None

    def __post_init__(self) -> None:
        if self.watch is not None and self.batch_loss is not None:
            raise ValueError("a phase with batch_loss cannot watch other samples; leave out watch or batch_loss")


class Learner(Protocol):
    """Trains and evaluates a model whose numbers are passed as arrays; ``TorchLearner`` is the one for torch modules.

    ``part`` selects a part of the model: a sub-model (``Slice``), the head alone (``Head``), or the model with a second
    head (``TwoHeads``). The arrays then have that part's names and shapes.
    """

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the arrays that training changes; the model's other arrays are buffers, or frozen."""

    @property
    def epochs(self) -> int:
        """Passes over a client's samples in a round: the experiment's ``training.epochs``."""

    @property
    def lr(self) -> float:
        """Learning rate: that of the context's round, or of ``with_settings``."""

    @property
    def momentum(self) -> float:
        """Momentum of SGD, in [0, 1); 0 for other optimisers."""

    @property
    def weight_decay(self) -> float:
        """Weight decay, 0 or more."""

    @property
    def batch(self) -> int:
        """Samples in a batch; the last one of an epoch may have fewer."""

    @property
    def optimiser(self) -> OptimiserName:
        """Name of the optimiser, such as ``sgd`` or ``adam-keras``."""

    @property
    def augments(self) -> bool:
        """Whether training changes images at random: ``training.augment``."""

    def init(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return initial parameters and buffers in the model's shapes; the same for the same seed.

        Args:
            seed: any non-negative integer, such as ``derive_seed`` returns.
        """

    def with_settings(self, **changes: Any) -> Learner:
        """Return the same learner with other training settings.

        Args:
            changes: fields of the experiment's ``training`` section, such as ``lr=0.001``, or ``optimiser="adam"`` with
                ``momentum=0.0``.

        Raises:
            ExperimentError: there is no such field, the section does not accept the value, or it contradicts another.
        """

    def at_round(self, round: int) -> Learner:
        """Return the same learner with the learning rate of a round; the contexts' learners have that of theirs.

        Args:
            round: from 1, or 0 before the first; ``training.lr_decay`` and ``training.schedule`` give its rate.
        """

    def head(self, layers: int) -> Sequence[str]:
        """Return the names of the head's arrays, in the model's order.

        Args:
            layers: number of linear layers at the model's end, 1 or more.

        Raises:
            ExperimentError: the model has fewer linear layers that can be its head.
            ValueError: ``layers`` is below 1.
        """

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
        """Train one phase from ``arrays``; the same input gives the same bits.

        Args:
            arrays: the numbers to start from, in the shapes of the model or of ``part``; they are not changed.
            data: samples of shape (n, *input_shape), n of 1 or more.
            seed: shuffles batches and draws dropout; use ``ClientContext.seed`` or a seed derived from it.
            penalty: added to the loss of each batch.
            loss: minimised instead of the loss of the model or of the learning task.
            part: what to train of the model; None: the whole model.
            only: as in ``TrainingPhase``.
            epochs: passes over ``data``, 1 or more; None: ``Learner.epochs``.
            public: as in ``TrainingPhase``.
            batch_loss: as in ``TrainingPhase``; needs the whole model, or a sub-model as ``part``.

        Returns:
            New arrays in the shapes of ``arrays``, and the loss without the penalty.

        Raises:
            PayloadError: the arrays are not those of the model or of ``part``.
            DataUnavailableError: there are no samples, or they do not fit the model.
            TrainingDivergedError: the loss or a trained number is not finite.
            UnsupportedPrecisionError: this device cannot train the model in the experiment's precision.
            PrivacyBudgetError: the training would spend more than the client's privacy budget.
            ExperimentError: ``epochs`` is below 1; or with ``batch_loss``, the model has no linear layer that can be
                its head.
            ValueError: ``only`` is empty, is no collection of names or has a name that the model does not have; there
                is no parameter to train; or a loss or penalty is no scalar, or the loss has no gradient.
        """

    def train_in_turn(
        self, arrays: Arrays, phases: Sequence[TrainingPhase], schedule: Sequence[int], *, seed: int,
        part: Part | None = None,
    ) -> TrainingResult:  # fmt: skip
        """Train several phases epoch by epoch; each has its own optimiser state, such as momentum.

        Args:
            arrays: the numbers to start from, in the shapes of the model or of ``part``; they are not changed.
            phases: what each phase trains, and on which samples.
            schedule: positions in ``phases``, one for each epoch, such as [0, 0, 1] for two of the first and one of
                the second.
            seed: shuffles batches and draws dropout.
            part: what to train of the model; None: the whole model.

        Returns:
            New arrays in the shapes of ``arrays``; fp16 and bf16 become fp32, buffers of other dtypes keep theirs.
            ``loss`` is the mean over the samples of the last epoch, without the penalty. Each of ``steps``
            was taken: amp repeats a batch whose gradients are not finite.

        Raises:
            FedquiltError: as ``train`` does.
            ValueError: as ``train`` does; or the schedule is empty or names a phase that is not there.
        """

    def evaluate(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, float]:
        """Score the model on labelled samples, in float32, at its deepest exit.

        Args:
            arrays: in the shapes of the model or of ``part``.
            data: samples of shape (n, *input_shape), n of 1 or more.
            part: the sub-model that the arrays belong to; None: the whole model.

        Returns:
            The scores of the learning task, such as ``accuracy`` or ``r2``.

        Raises:
            PayloadError: the arrays are not those of the model or of ``part``.
            DataUnavailableError: there are no samples, or they do not fit the model.
        """

    def count(
        self, arrays: Arrays, data: Examples, part: Part | None = None, views: OutputViews = deepest_exit
    ) -> Sequence[ScoreCounts]:
        """Compare the model's outputs with the labels; ``evaluation_reply`` sends the counts.

        Args:
            arrays: in the shapes of the model or of ``part``.
            data: samples of shape (n, *input_shape), n of 1 or more.
            part: what the arrays belong to; None: the whole model.
            views: derives the outputs that are counted from those of all heads or exits; by default the deepest exit's.

        Returns:
            Counts for each view, as ``LearningTask.count`` returns them, over all samples.

        Raises:
            FedquiltError: as ``evaluate`` does.
        """

    def predict(self, arrays: Arrays, data: Examples, part: Part | None = None) -> list[NDArray[np.float32]]:
        """Return the model's outputs for samples, such as logits.

        Args:
            arrays: in the shapes of the model or of ``part``.
            data: samples of shape (n, *input_shape); the labels are not read.
            part: what the arrays belong to; None: the whole model.

        Returns:
            A float32 array of shape (n, outputs) for each head or exit, the deepest last. Without samples, an empty
            list.

        Raises:
            PayloadError: the arrays are not those of the model or of ``part``.
        """

    def features(self, arrays: Arrays, data: Examples, head_layers: int) -> Examples:
        """Return what the base passes to the head, without dropout and with the stored norm statistics.

        Args:
            arrays: in the model's shapes.
            data: samples of shape (n, *input_shape).
            head_layers: number of linear layers that form the head.

        Returns:
            Float32 features of shape (n, inputs of the head), with the labels of ``data``.

        Raises:
            FedquiltError: as ``evaluate`` and ``head`` do.
            ValueError: ``head_layers`` is below 1.
        """

    def feature_extractor(self, arrays: Arrays, head_layers: int) -> Callable[[Any], Any]:
        """Return a function that computes features of samples in training, as ``features`` does of a whole data set.

        Args:
            arrays: in the model's shapes.
            head_layers: number of linear layers that form the head.

        Returns:
            It takes ``Batch.samples`` and returns their features without a gradient: a float32 tensor of shape
            (n, inputs of the head), computed on the samples' device and in their number format.

        Raises:
            FedquiltError: as ``features`` does for the model.
            ValueError: ``head_layers`` is below 1.
        """

    def statistics(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, NDArray[Any]]:
        """Measure means and variances of the static batch norms in one pass (HeteroFL, section 3).

        Args:
            arrays: in the shapes of the model or of ``part``; the statistics that they hold do not matter.
            data: samples of shape (n, *input_shape).
            part: the sub-model that the arrays belong to; None: the whole model.

        Returns:
            Float32 ``running_mean`` and ``running_var`` of each such norm by name, each of shape (channels,). Empty for
            a model that has none.

        Raises:
            FedquiltError: as ``evaluate`` does.
        """
