"""Detection: boxes with a class each; a model's own loss, scored by mean average precision as in COCO.

Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014, and the evaluation published with it: the precision
at 101 recalls, for overlaps of 0.5, 0.55 ... 0.95. The limits of the candidates are those of YOLOv8's validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks.boxes import DetectedBoxes, match_boxes, select_boxes
from fedquilt_common.learning_tasks.learning_task import LearningTask, ScoreCounts
from fedquilt_common.learning_tasks.metrics import MAP50, MAP50_95, Metric
from fedquilt_common.types import Shapes

OVERLAPS: Final = np.linspace(0.5, 0.95, 10)
"""Least overlaps (intersection over union) of a detection and an object."""
_STEPS: Final = 64
"""Bins from a score to twice that score, below 0.5."""
_OCTAVES_BELOW: Final = 9
"""How often 0.5 is halved on the way down: to 2^-10, which is below the least score of a detection."""
_OCTAVES_ABOVE: Final = 16
"""How often the distance of 0.5 to 1 is halved on the way up."""
BINS: Final = (_OCTAVES_BELOW + _OCTAVES_ABOVE) * _STEPS
"""Bins of the scores from 0 to 1."""
_NO_LOSS: Final = (
    "the task 'detection' has no loss of its own, and the model has no method training_loss(outputs, targets); choose "
    "a model for detection, or add the method (docs/tasks.md)"
)
_RECALLS: Final = np.linspace(0.0, 1.0, 101)
_MOST: Final = float(1 << 40)


@dataclass(frozen=True)
class Detection(LearningTask):
    """Labels are boxes of shape (n, most, 5): class, centre x, centre y, width, height.

    Places are parts of the image, in [0, 1]; class -1 pads. In evaluation the model's outputs are candidates of shape
    (n, candidates, 4 + classes): centre x, centre y, width, height in [0, 1], then a score in [0, 1] for each class.
    Training takes the model's ``training_loss``.

    Counts have a fixed size: for each class a histogram of the detections' scores, and one of those that hit an object
    for each overlap. Precision and recall are exact at the limits of the bins. Between them they are not known, so the
    metrics are at most those of pycocotools: equal if no bin of a class has several detections, and usually less than
    0.005 below.

    Attributes:
        classes: number of classes.
    """

    name: ClassVar[str] = "detection"
    metrics: ClassVar[tuple[Metric, ...]] = (MAP50, MAP50_95)

    classes: int

    @classmethod
    def for_labels(cls, classes: int, label_shape: tuple[int, ...]) -> Detection:
        if classes < 1 or len(label_shape) != 2 or label_shape[1] != 5:
            raise DataUnavailableError(
                f"task 'detection': the data set has {classes} classes and labels of shape {('n', *label_shape)}; it "
                "must have at least one class, and boxes of shape (n, most, 5)"
            )
        return cls(classes)

    @property
    def count_shapes(self) -> Shapes:
        found = (self.classes, BINS)
        return {"objects": (self.classes,), "found": found, "hits": (len(OVERLAPS), *found)}

    def check(self, y: NDArray[Any]) -> None:
        boxes = y[y[..., 0] != -1]
        kinds = boxes[:, 0]
        if not (np.isin(kinds, np.arange(self.classes)).all() and np.isfinite(boxes).all()):
            raise DataUnavailableError(
                f"a box has a class that is not a whole number from 0 to {self.classes - 1}, or a place that is not "
                "finite; repair the data set (-1 is the class of places without a box)"
            )

    def find_output_problem(self, shapes: Sequence[tuple[int, ...]], y: NDArray[Any], *, own_loss: bool) -> str:
        if not own_loss:
            return _NO_LOSS
        found, expected = shapes[-1], 4 + self.classes
        return "" if len(found) == 2 and found[1] == expected else _describe_outputs(found, expected)

    def can_score(self, y: NDArray[Any]) -> bool:
        return bool((y[..., 0] != -1).any())

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return y.astype(np.float32)

    def loss(self, outputs: Any, targets: Any) -> Any:
        raise ExperimentError(_NO_LOSS)

    def count(self, outputs: NDArray[np.float32], targets: NDArray[Any]) -> ScoreCounts:
        """Return the numbers of ``objects``, ``found`` and ``hits``, by class and bin of the score."""
        if outputs.ndim != 3 or outputs.shape[2] != 4 + self.classes:
            raise ExperimentError(_describe_outputs(outputs.shape[1:], 4 + self.classes))
        counts = {name: np.zeros(shape) for name, shape in self.count_shapes.items()}
        for candidates, labels in zip(outputs, targets, strict=True):
            objects = labels[labels[:, 0] >= 0]
            self._count_image(select_boxes(candidates), objects, counts)
        return counts

    def _count_image(self, boxes: DetectedBoxes, objects: NDArray[Any], counts: dict[str, NDArray[np.float64]]) -> None:
        """Add the detections of one image to the counts."""
        kinds = objects[:, 0].astype(np.int64)
        counts["objects"] += np.bincount(kinds, minlength=self.classes)
        bins = find_bins(boxes.scores)
        np.add.at(counts["found"], (boxes.kinds, bins), 1.0)
        for kind in np.intersect1d(kinds, boxes.kinds):
            own = boxes.kinds == kind
            hits = match_boxes(boxes.places[own], objects[kinds == kind, 1:], OVERLAPS)
            for overlap, hit in enumerate(hits):
                np.add.at(counts["hits"][overlap, kind], bins[own][hit], 1.0)

    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        """Return the metrics, over the classes that have objects."""
        objects, found, hits = (_whole(counts[name]) for name in ("objects", "found", "hits"))
        held = objects > 0
        if not held.any():
            return {}
        right = np.minimum(hits, found)[:, held]
        precision = np.array([
            [average_precision(right[overlap, kind], found[held][kind], objects[held][kind])
             for kind in range(right.shape[1])] for overlap in range(len(OVERLAPS))
        ])  # fmt: skip
        return {"map50": float(precision[0].mean()), "map50_95": float(precision.mean())}


def find_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each score, ascending with the score.

    The scores of a detector crowd near 0 early in its training, or near 1 late. So the bins are narrow there: below 0.5
    they are ``_STEPS`` parts of each octave of the score, above it of each octave of its distance to 1. Binary
    fractions have no rounding error, so every board finds the same bins.

    Args:
        scores: above ``LEAST_SCORE``, at most 1; shape (n,).

    Returns:
        From 0 to ``BINS`` - 1, shape (n,).
    """
    below = scores < 0.5
    distance = np.maximum(np.where(below, scores, 1.0 - scores), 2.0 ** -(_OCTAVES_ABOVE + 1))
    fraction, exponent = np.frexp(distance)  # distance = fraction * 2^exponent, 0.5 <= fraction < 1
    steps = exponent * _STEPS + np.floor((2 * fraction - 1) * _STEPS).astype(np.int64)
    steps = np.minimum(steps, -1)  # 0 is the score 0.5 alone; it joins the bin above
    middle = _OCTAVES_BELOW * _STEPS
    bins: NDArray[np.int64] = np.where(below, middle + steps, middle - 1 - steps)
    return bins


def average_precision(hits: NDArray[np.float64], found: NDArray[np.float64], objects: float) -> float:
    """Return the mean over 101 recalls of the best precision that is reached at this recall or a higher one.

    Args:
        hits: right detections by bin of their score, the lowest scores first, shape (bins,).
        found: all detections by bin, shape (bins,).
        objects: number of objects, above 0.
    """
    right, total = np.cumsum(hits[::-1]), np.cumsum(found[::-1])
    recall = np.minimum(right / objects, 1.0)
    precision = right / np.maximum(total, 1.0)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return float(best[np.searchsorted(recall, _RECALLS, side="left")].mean())


def _describe_outputs(found: tuple[int, ...], expected: int) -> str:
    shown = ", ".join(map(str, ("n", *found)))
    return (
        f"the model's outputs have the shape ({shown}); in evaluation, a model for detection returns candidates of "
        f"shape (n, candidates, {expected})"
    )


def _whole(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return counts that can be true: a client may send any numbers."""
    return np.rint(np.clip(np.nan_to_num(counts), 0.0, _MOST))
