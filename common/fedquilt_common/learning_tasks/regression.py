"""Regression: one or more numbers for each sample; mean squared error, scored by R2 and MAE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks.learning_task import LearningTask, ScoreCounts
from fedquilt_common.learning_tasks.metrics import LARGEST, LOSS, MAE, R2, Metric
from fedquilt_common.types import Shapes

_ROUNDING: Final = 1e-12
"""Share of a target's sum of squares below which its deviation from the mean is only rounding."""
_LARGEST_SUM: Final = 1e150


@dataclass(frozen=True)
class Regression(LearningTask):
    """Labels and outputs are floats of shape (n, outputs), or (n,) for one output.

    R2 is the mean over the outputs. A target that never changes counts as 0, because there is nothing to explain. It is
    computed from sums of the targets and of their squares, in float64: its error is about 1e-15 times the square of
    mean / standard deviation of the target.

    Attributes:
        outputs: targets of a sample.
    """

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[Metric, ...]] = (R2, MAE, LOSS)

    outputs: int = 1

    @classmethod
    def for_labels(cls, classes: int, label_shape: tuple[int, ...]) -> Regression:
        if classes:
            raise DataUnavailableError(
                f"task 'regression': the data set has {classes} classes; set its classes to 0, or its task to "
                "classification"
            )
        return cls(math.prod(label_shape))

    @property
    def count_shapes(self) -> Shapes:
        sums = ("targets", "squares", "absolute_errors", "squared_errors")
        return {"samples": (), **dict.fromkeys(sums, (self.outputs,))}

    def check(self, y: NDArray[Any]) -> None:
        if not np.isfinite(y).all():
            raise DataUnavailableError("a target is not a finite number; repair the data set")

    def find_output_problem(self, shapes: Sequence[tuple[int, ...]], y: NDArray[Any], *, own_loss: bool) -> str:
        found = math.prod(shapes[-1])
        return "" if found == self.outputs else _describe_outputs(found, self.outputs)

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return y.astype(np.float32).reshape(len(y), -1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional

        return functional.mse_loss(match_shape(outputs, targets), targets)

    def count(self, outputs: NDArray[np.float32], targets: NDArray[Any]) -> ScoreCounts:
        """Return the number of ``samples``, and the sums over them for each output."""
        error = match_shape(outputs, targets).astype(np.float64) - targets
        exact = targets.astype(np.float64)
        sums = {
            "targets": exact, "squares": exact**2, "absolute_errors": np.abs(error), "squared_errors": error**2
        }  # fmt: skip
        return {
            "samples": np.array(float(len(targets))),
            **{name: _bounded(values.sum(axis=0)) for name, values in sums.items()},
        }

    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        samples = float(counts["samples"])
        if not 1 <= samples < LARGEST:
            return {}
        total = _bounded(counts["targets"])
        squares, absolute, squared = (
            np.maximum(_bounded(counts[name]), 0.0) for name in ("squares", "absolute_errors", "squared_errors")
        )
        spread = squares - total / samples * total
        known = spread > _ROUNDING * squares
        with np.errstate(over="ignore"):  # minus infinity becomes the lowest score
            r2 = np.where(known, 1 - squared / np.where(known, spread, 1.0), 0.0)
        return {
            "r2": float(np.clip(r2.mean(), R2.low, R2.high)),
            "mae": float(absolute.mean()) / samples,
            "loss": float(squared.mean()) / samples,
        }


def _bounded(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace sums that are not finite by the largest, so that counts can travel and their squares stay finite."""
    return np.clip(np.nan_to_num(sums, nan=_LARGEST_SUM), -_LARGEST_SUM, _LARGEST_SUM)


def match_shape(outputs: Any, targets: Any) -> Any:
    """Reshape a model's outputs to those of its regression targets.

    Args:
        outputs: a tensor or an array of shape (n,) or (n, ...).
        targets: of shape (n, outputs).

    Returns:
        ``outputs`` in the shape (n, outputs), with its own dtype.

    Raises:
        ExperimentError: the model has another number of outputs than the data set.
    """
    outputs = outputs.reshape(len(outputs), -1)
    if outputs.shape != targets.shape:
        raise ExperimentError(_describe_outputs(outputs.shape[1], targets.shape[1]))
    return outputs


def _describe_outputs(found: int, targets: int) -> str:
    return (
        f"the model has {found} outputs for a sample, but the data set has {targets} targets; "
        "choose a model with as many outputs"
    )
