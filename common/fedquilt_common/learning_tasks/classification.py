"""Classification: one class for each sample; cross entropy, scored by accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks.class_scores import clip_counts, count_classes, score_counts
from fedquilt_common.learning_tasks.cross_entropy import bounded_sum, sum_cross_entropy
from fedquilt_common.learning_tasks.learning_task import WIDEN, LearningTask, ScoreCounts
from fedquilt_common.learning_tasks.metrics import ACCURACY, BALANCED_ACCURACY, LOSS, MACRO_F1, Metric
from fedquilt_common.types import Shapes


@dataclass(frozen=True)
class Classification(LearningTask):
    """Labels are classes from 0, shape (n,); outputs are logits of shape (n, classes).

    Attributes:
        classes: number of classes.
    """

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, BALANCED_ACCURACY, MACRO_F1, LOSS)

    classes: int

    @classmethod
    def for_labels(cls, classes: int, label_shape: tuple[int, ...]) -> Classification:
        if classes < 1 or label_shape != ():
            raise DataUnavailableError(
                f"task 'classification': the data set has {classes} classes and labels of shape {('n', *label_shape)}; "
                "give it at least one class, and one label for each sample"
            )
        return cls(classes)

    @property
    def count_shapes(self) -> Shapes:
        return {"classes": (3, self.classes), "loss": ()}

    def check(self, y: NDArray[Any]) -> None:
        if y.ndim != 1:
            return
        if y.dtype.kind not in "biu" and len(broken := y[y != np.rint(y)]):
            raise DataUnavailableError(
                f"a label is {broken[0]}, which is no class; classes are whole numbers from 0 to {self.classes - 1}"
            )
        if not (y.min() >= 0 and y.max() < self.classes):
            raise DataUnavailableError(
                f"labels are from {y.min()} to {y.max()}, but there are {self.classes} classes; "
                f"number them from 0 to {self.classes - 1}"
            )

    def find_output_problem(self, shapes: Sequence[tuple[int, ...]], y: NDArray[Any], *, own_loss: bool) -> str:
        if shapes[-1] == (self.classes,):
            return ""
        found = "x".join(map(str, shapes[-1])) or "1"
        noun = "output" if found == "1" else "outputs"
        return f"the model has {found} {noun} for a sample, but the data set has {self.classes} classes; {WIDEN}"

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return y.astype(np.int64) if y.ndim == 1 else y.astype(np.float32).reshape(len(y), -1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional

        self._check_outputs(outputs, targets)
        return functional.cross_entropy(outputs, targets)

    def count(self, outputs: NDArray[np.float32], targets: NDArray[Any]) -> ScoreCounts:
        """Return ``classes``, shape (3, classes) as ``count_classes`` returns them, and the sum ``loss``."""
        self._check_outputs(outputs, targets)
        classes = count_classes(targets, outputs.argmax(axis=1), self.classes)
        return {"classes": classes, "loss": np.array(sum_cross_entropy(outputs, targets))}

    def _check_outputs(self, outputs: Any, targets: Any) -> None:
        if tuple(outputs.shape) != (len(targets), self.classes):
            raise ExperimentError(
                f"the model's outputs have the shape {tuple(outputs.shape)}, but classification needs a logit for each "
                f"sample and class, shape ({len(targets)}, {self.classes}); choose a model with as many outputs"
            )

    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        """Return the metrics, and ``class_accuracy_<number>`` of each class that has samples."""
        classes = clip_counts(counts["classes"])
        samples, right, _ = classes.sum(axis=1).tolist()
        if not samples:
            return {}
        loss = bounded_sum(float(counts["loss"])) / samples
        return {"accuracy": right / samples, "loss": loss, **score_counts(classes)}

    def held_classes(self, y: NDArray[Any]) -> NDArray[np.bool_] | None:
        return np.bincount(y.astype(np.int64), minlength=self.classes) > 0
