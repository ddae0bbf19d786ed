"""Which settings of the clients' training suit an algorithm."""

from __future__ import annotations

from typing import Final, Protocol

from fedquilt_common.algorithm_api.records import declaration_of
from fedquilt_common.types import OptimiserName

KEPT_WITH_SUB_MODELS: Final = (
    "keep_optimiser = true: the algorithm trains sub-models, whose shapes differ from round to round, so an "
    "optimiser's state does not fit the next one; remove the key"
)


class TrainingSettings(Protocol):
    """The settings of a client's training that an algorithm may need: fields of the section ``training``."""

    @property
    def optimiser(self) -> OptimiserName:
        """Name of the optimiser."""

    @property
    def momentum(self) -> float:
        """Momentum of SGD, in [0, 1); 0 for other optimisers."""

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
    own = getattr(algorithm, "training_problem", None)
    return str(own(training)) if own is not None else ""
