"""The learning tasks by name, one file each: what a model learns, and how it is scored.

``Dataset.task`` names one. It is not to be confused with a ``Task``, the request to one client in an exchange.
"""

from __future__ import annotations

from fedquilt_common.errors import UnknownNameError
from fedquilt_common.learning_tasks.classification import Classification
from fedquilt_common.learning_tasks.detection import Detection
from fedquilt_common.learning_tasks.learning_task import LearningTask, ScoreCounts, add_counts
from fedquilt_common.learning_tasks.next_word import NextWord
from fedquilt_common.learning_tasks.regression import Regression
from fedquilt_common.types import Dataset

__all__ = [
    "LEARNING_TASKS", "Classification", "Detection", "LearningTask", "NextWord", "Regression", "ScoreCounts",
    "add_counts", "make_learning_task",
]  # fmt: skip

LEARNING_TASKS: dict[str, type[LearningTask]] = {
    "classification": Classification,
    "regression": Regression,
    "next-word": NextWord,
    "detection": Detection,
}


def make_learning_task(dataset: Dataset) -> LearningTask:
    """Return the learning task of a data set; without a name, classification if it has classes, else regression.

    Raises:
        UnknownNameError: there is no task of the name that the data set gives.
        DataUnavailableError: the data set's labels are not those of its task.
    """
    name = dataset.task or ("classification" if dataset.classes else "regression")
    if name not in LEARNING_TASKS:
        raise UnknownNameError(
            f"data set '{dataset.name}': its task '{name}' is unknown; choose one of: {', '.join(LEARNING_TASKS)}"
        )
    return LEARNING_TASKS[name].for_labels(dataset.classes, tuple(dataset.train.y.shape[1:]))
