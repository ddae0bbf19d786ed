"""Detect training that diverges, and rounds in which nobody trains, from the rounds' results. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedquilt_server.status.results import RoundResult

EXPLOSION: Final = 10.0
"""A loss has exploded at this multiple of the loss of a model that guesses, or of the lowest loss so far."""
CHANCE: Final = 1.2
"""An accuracy is at chance level up to this multiple of 1 / classes."""
CHANCE_ROUNDS: Final = 5
"""Evaluated rounds in a row at chance level that count as divergence."""
UNTRAINED_ROUNDS: Final = 3
"""Rounds in a row without training that are reported; at the start of a run the first one is."""


@dataclass
class DivergenceDetector:
    """Checks the rounds of a run, one after the other.

    Args:
        classes: number of classes of the data set; None for a regression and for runs that do not train.

    Attributes:
        warning: what is wrong after the last checked round; empty if nothing is.
    """

    classes: int | None
    warning: str = ""
    _lowest: float | None = None
    _at_chance: int = 0
    _taken: int = 0
    _untrained: int = 0

    def take(self, row: RoundResult) -> bool:
        """Check the next round's results; returns whether divergence begins with it."""
        before = self.warning
        self.warning = self._check_training(row) or self._check_loss(row) or self._check_accuracy(row)
        return bool(self.warning) and not before

    def _check_training(self, row: RoundResult) -> str:
        """Check that anybody trains: AdaptiveFL's boards for which no sub-model fits reply without arrays."""
        self._taken += 1
        self._untrained = self._untrained + 1 if row.waste_rate == 1 else 0
        if not self._untrained or self._untrained < min(self._taken, UNTRAINED_ROUNDS):
            return ""
        first = row.round - self._untrained + 1
        rounds = f"round {first}" if self._untrained == 1 else f"rounds {first} to {row.round}"
        return (
            f"No client has trained in {rounds}: not even the smallest sub-model fits the boards that were asked. "
            "'fedquilt model inspect' prints how much memory each sub-model needs"
        )

    def _check_loss(self, row: RoundResult) -> str:
        if row.loss is None:
            return self.warning if _is_about_loss(self.warning) else ""  # this round was not evaluated
        limit, normal = self._loss_limit()
        if not math.isfinite(row.loss):
            return f"The loss is {row.loss} after round {row.round}: the training has diverged. Try a lower training.lr"
        if limit is not None and row.loss > limit:
            return (
                f"The loss is {row.loss:.4g} after round {row.round}, over {EXPLOSION:g} times {normal}: the training "
                "has diverged. Try a lower training.lr"
            )
        self._lowest = row.loss if self._lowest is None else min(self._lowest, row.loss)
        return ""

    def _loss_limit(self) -> tuple[float | None, str]:
        """Return the greatest loss that is not divergence, and what it is measured by."""
        guess = math.log(self.classes) if self.classes and self.classes > 1 else None
        if guess is not None and (self._lowest is None or self._lowest < guess):
            return EXPLOSION * guess, f"that of a model that guesses ({guess:.4g})"
        if self._lowest is None or self._lowest <= 0:
            return None, ""
        return EXPLOSION * self._lowest, f"the lowest so far ({self._lowest:.4g})"

    def _check_accuracy(self, row: RoundResult) -> str:
        accuracy = row.accuracy if row.accuracy is not None else row.global_accuracy
        if self.classes is None or self.classes < 2:
            return ""
        if accuracy is not None:
            self._at_chance = self._at_chance + 1 if accuracy <= CHANCE / self.classes else 0
        if self._at_chance < CHANCE_ROUNDS:
            return ""
        return (
            f"The accuracy is at chance level (1 of {self.classes} classes) in the last {self._at_chance} evaluations, "
            f"up to round {row.round}: the model does not learn. Check training.lr, the model and the data"
        )


def _is_about_loss(warning: str) -> bool:
    return warning.startswith("The loss")
