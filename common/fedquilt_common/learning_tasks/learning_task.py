"""The interface of a learning task, and the counts from which its metrics are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_common.types import Shapes

ScoreCounts = Mapping[str, NDArray[np.float64]]
"""Sums by name, in the shapes of ``LearningTask.count_shapes``; those of batches and of clients add up."""
WIDEN: Final = "make its last layer as wide as the argument `classes` of its factory, or choose another model"
"""What to do about a model with another number of outputs than classes."""


class LearningTask(ABC):
    """What a model learns to do: how labels become targets, the loss, and the metrics.

    Its subclasses are frozen dataclasses, one file each, listed in ``LEARNING_TASKS``. Clients and coordinator evaluate
    with the same two functions: ``count`` for each batch, and ``scores`` for the sum of all counts.

    Attributes:
        name: its key in ``LEARNING_TASKS``, and the value of ``Dataset.task``.
        metrics: what ``scores`` returns, the main metric first.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    @classmethod
    @abstractmethod
    def for_labels(cls, classes: int, label_shape: tuple[int, ...]) -> LearningTask:
        """Return the task for a data set.

        Args:
            classes: number of classes of the data set; 0 if it has none.
            label_shape: shape of the labels of one sample, such as ``()`` for a class.

        Raises:
            DataUnavailableError: labels of this shape are not those of the task.
        """

    @property
    def main(self) -> Metric:
        """The metric by which models are compared."""
        return self.metrics[0]

    @property
    @abstractmethod
    def count_shapes(self) -> Shapes:
        """Shape of each array that ``count`` returns."""

    @abstractmethod
    def check(self, y: NDArray[Any]) -> None:
        """Check labels as a data set holds them, shape (n, *label_shape).

        Raises:
            DataUnavailableError: a label has no meaning, such as a class beyond the last one.
        """

    @abstractmethod
    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return labels in the form that ``loss`` and ``count`` expect.

        Args:
            y: labels as the data set holds them, shape (n, *label_shape). A classification also accepts soft labels of
                shape (n, classes).

        Returns:
            int64 for classes and words, else float32; n rows.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss that training minimises unless the algorithm or the model has its own.

        Args:
            outputs: the model's float32 outputs for a batch, a torch tensor with n rows.
            targets: as ``targets`` returns them, as a torch tensor.

        Returns:
            A scalar tensor that has a gradient, the mean over the batch.

        Raises:
            ExperimentError: the model's outputs do not have the shape that the task requires.
        """

    @abstractmethod
    def count(self, outputs: NDArray[np.float32], targets: NDArray[Any]) -> ScoreCounts:
        """Compare a model's outputs with the targets of the same samples.

        Args:
            outputs: float32 with n rows, at the model's deepest exit.
            targets: as ``targets`` returns them.

        Returns:
            Finite sums in the shapes of ``count_shapes``.

        Raises:
            ExperimentError: the model's outputs do not have the shape that the task requires.
        """

    @abstractmethod
    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        """Return the metrics of pooled counts.

        Args:
            counts: the sum of what ``count`` returned for all batches of all clients. A client may send any numbers.

        Returns:
            The value of each of ``metrics`` by name, within its limits, and further scores, such as those of each
            class. Empty if nothing was counted.
        """

    @abstractmethod
    def find_output_problem(self, shapes: Sequence[tuple[int, ...]], y: NDArray[Any], *, own_loss: bool) -> str:
        """Return why a model with such outputs does not suit the data set; empty if it does.

        Args:
            shapes: of each output of the model for one sample in evaluation, at least one; the last is evaluated.
            y: the labels of the training samples, as the data set holds them.
            own_loss: whether the model trains with its own ``training_loss``; else with the task's, on the last output.
        """

    def can_score(self, y: NDArray[Any]) -> bool:
        """Return whether ``scores`` has something to measure on samples with these labels, as the data set holds them.

        False for none, and for labels that hold only padding.
        """
        return len(y) > 0

    def find_lack(self, y: NDArray[Any]) -> str:
        """Return what a data set lacks whose test samples have the labels ``y``; empty if they can be scored."""
        if self.can_score(y):
            return ""
        return "test samples with labels" if len(y) else "test samples"

    def average(self, values: Any, targets: Any) -> Any:
        """Return the mean of what a further loss measures in a batch, without places that do not count.

        Args:
            values: a torch tensor of shape (n,), or (n, places) for features at each place of a sequence.
            targets: as ``loss`` receives them.
        """
        return values.mean()

    def held_classes(self, y: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return which outputs of the model stand for classes or words in ``y``, shape (classes,).

        None where outputs do not stand for classes.
        """
        return None


def add_counts(counts: Iterable[ScoreCounts]) -> ScoreCounts:
    """Return the sum of counts of the same names and shapes; at least one."""
    first, *others = counts
    total = {name: np.array(array, np.float64) for name, array in first.items()}
    for other in others:
        for name in total:
            total[name] += other[name]
    return total
