"""Which settings of the clients' training suit an algorithm."""

from __future__ import annotations

from typing import Final, Protocol

from fedquilt_common.algorithm_api.hooks import ask_problem
from fedquilt_common.algorithm_api.records import declaration_of
from fedquilt_common.types import OptimiserName

KEPT_WITH_SUB_MODELS: Final = (
    "keep_optimiser = true: the algorithm trains sub-models, whose shapes differ from round to round, so an "
    "optimiser's state does not fit the next one; remove the key"
)
OWN_LOSSES: Final = (
    "the algorithm trains with losses of its own instead of the model's training_loss; remove that method, or choose "
    "an algorithm that uses it, such as fedavg"
)
_ROOT_OF_SQUARES: Final = ("adam", "adam-keras", "rmsprop")
"""Optimisers that divide by the root of a mean of squares plus at most 1e-7; the root in rmsprop-keras is never 0."""


class TrainingSettings(Protocol):
    """The settings of a client's training that an algorithm may need: fields of the section ``training``."""

    @property
    def optimiser(self) -> OptimiserName:
        """Name of the optimiser."""

    @property
    def lr(self) -> float:
        """Learning rate, without its schedule."""

    @property
    def momentum(self) -> float:
        """Momentum of SGD, in [0, 1); 0 for other optimisers."""

    @property
    def precision(self) -> str:
        """Number format in training: ``fp32``, ``amp``, ``fp16`` or ``bf16``."""

    @property
    def keep_optimiser(self) -> bool:
        """Whether optimisers last from round to round, and momentum with them."""

    @property
    def sampling(self) -> str:
        """How an epoch draws samples: ``shuffled`` or ``balanced``."""

    @property
    def augment(self) -> object | None:
        """Random changes of the images of a batch; None: there are none."""


def training_problem(algorithm: object, training: TrainingSettings) -> str:
    """Return which setting of a client's training does not suit an algorithm; empty if all do.

    Args:
        algorithm: its optional method ``training_problem`` takes the settings, and returns ``<key> = <value>: <why>;
            <what to do>``.
        training: the client's own settings.
    """
    if training.keep_optimiser and declaration_of(algorithm).sub_models != "none":
        return KEPT_WITH_SUB_MODELS
    return ask_problem(algorithm, "training_problem", training)


def loss_problem(algorithm: object, task: object) -> str:
    """Return why an algorithm cannot train a model that has a loss of its own; empty if it can.

    Args:
        algorithm: its optional method ``loss_problem`` takes the task, and returns ``<why>; <what to do>``.
        task: the learning task.
    """
    return ask_problem(algorithm, "loss_problem", task)


def half_precision_problem(optimiser: OptimiserName, precision: str) -> str:
    """Return why a training diverges that divides by squares in true half precision; empty if it does not.

    Args:
        optimiser: of the training.
        precision: its number format.
    """
    if precision != "fp16" or optimiser not in _ROOT_OF_SQUARES:
        return ""
    return (
        f"in fp16 the squares of small gradients are 0, and {optimiser} divides by their root, so the training "
        "diverges; choose training.precision bf16, amp or fp32, or the optimiser sgd"
    )
