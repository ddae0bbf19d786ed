"""The metrics of all learning tasks: the one table of their names, labels, units and meanings. Needs no numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

LARGEST: Final = 1e300
"""Limit of metrics without a natural one. Sums and squares of deviations stay finite."""


@dataclass(frozen=True)
class Metric:
    """One number that measures how good a model is.

    Attributes:
        name: key in the scores of a round, such as ``map50``.
        label: short name in sentences and tables.
        title: the same as a heading.
        unit: ``share`` is from 0 to 1 and shown in per cent; ``number`` is shown as it is.
        meaning: definition in one sentence.
        low: the least possible value.
        high: the largest possible value.
        best: which of two values is better.
    """

    name: str
    label: str
    title: str
    unit: Literal["share", "number"]
    meaning: str
    low: float = 0.0
    high: float = 1.0
    best: Literal["max", "min"] = "max"

    @property
    def title_inside(self) -> str:
        """The heading after another word: "accuracy" in "Global accuracy", but "R\N{SUPERSCRIPT TWO}"."""
        return self.label if self.title == self.label.capitalize() else self.title


ACCURACY: Final = Metric("accuracy", "accuracy", "Accuracy", "share", "right answers / samples, or right words / words")
BALANCED_ACCURACY: Final = Metric(
    "balanced_accuracy", "balanced accuracy", "Balanced accuracy", "share",
    "mean over the classes with test samples of the accuracy in each class",
)  # fmt: skip
MACRO_F1: Final = Metric(
    "macro_f1", "macro-F1", "Macro-F1", "share",
    "mean over the classes that have test samples or are named of the F1 score of each class",
)  # fmt: skip
R2: Final = Metric(
    "r2", "R2", "R\N{SUPERSCRIPT TWO}", "number", "coefficient of determination, mean over the outputs", -LARGEST
)
MAE: Final = Metric(
    "mae", "MAE", "MAE", "number", "mean absolute error, in the unit in which the targets are stored",
    0.0, LARGEST, "min",
)  # fmt: skip
MAP50: Final = Metric(
    "map50", "mAP-50", "mAP-50", "share", "mean over the classes of the average precision at an overlap (IoU) of 0.5"
)
MAP50_95: Final = Metric(
    "map50_95", "mAP-50:95", "mAP-50:95", "share",
    "mean of the average precision at overlaps (IoU) of 0.5, 0.55 ... 0.95",
)  # fmt: skip
PERPLEXITY: Final = Metric(
    "perplexity", "perplexity", "Perplexity", "number", "exponential of the mean cross entropy of a word",
    1.0, LARGEST, "min",
)  # fmt: skip
LOSS: Final = Metric("loss", "loss", "Loss", "number", "mean loss over the test samples", 0.0, LARGEST, "min")
METRICS: Final = {
    metric.name: metric
    for metric in (ACCURACY, BALANCED_ACCURACY, MACRO_F1, PERPLEXITY, R2, MAE, MAP50, MAP50_95, LOSS)
}
"""The metrics by name, in the order in which tables show them."""
MAIN_METRICS: Final = (ACCURACY, R2, MAP50)
"""The main metric of each learning task. A run is compared by the first of them that it has; more is better."""
SECOND_METRICS: Final = (PERPLEXITY, MAE, MAP50_95)
"""Metrics that programs show besides the main one; those of classes are in tables and reports only."""


def _derive(metric: Metric, prefix: str, meaning: str) -> Metric:
    """Return a metric measured in another way: ``prefix`` comes before its name and its label."""
    label = f"{prefix} {metric.label}"
    return replace(
        metric, name=f"{prefix} {metric.name}".replace(" ", "_"), label=label,
        title=f"{prefix.capitalize()} {metric.title_inside}", meaning=meaning.format(metric.label),
    )  # fmt: skip


LOCAL_METRICS: Final = tuple(
    _derive(metric, "local", "{} of the global model on the clients' own test samples, each sample counting equally")
    for metric in MAIN_METRICS
)
"""The main metrics on the clients' samples, where the coordinator evaluates, too; shown beside the main one."""
MEAN_LOCAL_METRICS: Final = tuple(
    _derive(metric, "mean local", "mean over the clients of the {} of the global model on their own test samples")
    for metric in MAIN_METRICS
)
"""The same with each client counting equally; in tables and reports only."""
