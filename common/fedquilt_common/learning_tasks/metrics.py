"""The metrics of all learning tasks: the one table of their names, labels, units and meanings. Needs no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LARGEST: Final = 1e300
"""Limit of metrics without a natural one. Sums and squares of deviations stay finite."""


@dataclass(frozen=True)
class Metric:
    """One number that says how good a model is.

    Attributes:
        name: key in the scores of a round, such as ``map50``.
        label: short name in tables, charts and on the page.
        unit: ``share`` is from 0 to 1 and shown in per cent; ``number`` is shown as it is.
        meaning: definition in one sentence.
        low: the least possible value.
        high: the largest possible value.
        best: which of two values is better.
    """

    name: str
    label: str
    unit: Literal["share", "number"]
    meaning: str
    low: float = 0.0
    high: float = 1.0
    best: Literal["max", "min"] = "max"


ACCURACY: Final = Metric(
    "accuracy", "accuracy", "share", "right answers / samples; for next words, right words / words"
)
BALANCED_ACCURACY: Final = Metric(
    "balanced_accuracy", "balanced accuracy", "share", "mean over the classes of the accuracy in each class"
)
MACRO_F1: Final = Metric("macro_f1", "macro-F1", "share", "mean over the classes of the F1 score of each class")
R2: Final = Metric("r2", "R2", "number", "coefficient of determination, mean over the outputs", -LARGEST)
MAE: Final = Metric(
    "mae", "MAE", "number", "mean absolute error, in the unit in which the targets are stored", 0.0, LARGEST, "min"
)
MAP50: Final = Metric(
    "map50", "mAP-50", "share", "mean over the classes of the average precision at an overlap (IoU) of 0.5"
)
MAP50_95: Final = Metric(
    "map50_95", "mAP-50:95", "share", "mean of the average precision at overlaps (IoU) of 0.5, 0.55 ... 0.95"
)
PERPLEXITY: Final = Metric(
    "perplexity", "perplexity", "number", "exponential of the mean cross entropy of a word", 1.0, LARGEST, "min"
)
LOSS: Final = Metric("loss", "loss", "number", "mean loss over the test samples", 0.0, LARGEST, "min")
METRICS: Final = {
    metric.name: metric
    for metric in (ACCURACY, BALANCED_ACCURACY, MACRO_F1, R2, MAP50, MAP50_95, MAE, PERPLEXITY, LOSS)
}
"""The metrics by name, in the order in which tables show them."""
