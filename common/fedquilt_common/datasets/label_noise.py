"""Wrong labels in training samples: symmetric, pairwise, or by a confusion matrix.

FedAIoT (Alam et al., 2023, section 3.2.5; its thesis, section 2.2.3.5) draws the samples at random and changes the
label i to j with a probability that follows the confusion matrix of a centrally trained model. Its error ratio is the
part of all labels that are wrong. So a drawn label always changes here: the diagonal of the matrix does not count.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.data_file import read_data_file
from fedquilt_common.datasets.files import report_csv_errors
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.data_section import LabelNoise

_FILE = "data.label_noise.file"


@dataclass(frozen=True)
class ChangedLabels:
    """The samples whose labels are wrong.

    Args:
        index: of the samples, int64, ascending; counts as the indices of a share.
        labels: the wrong label of each, int64 of the same shape.
        drawn_from: number of samples from which these were drawn.
    """

    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    drawn_from: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def apply(self, index: NDArray[np.int64], y: NDArray[Any]) -> NDArray[Any]:
        """Return the labels ``y`` of the samples at ``index``, those of changed samples replaced."""
        if not len(self):
            return y
        place = np.minimum(np.searchsorted(self.index, index), len(self) - 1)
        return np.where(self.index[place] == index, self.labels[place], y).astype(y.dtype)


def change_labels(
    noise: LabelNoise, labels: NDArray[np.integer], index: NDArray[np.int64], classes: int, seed: int
) -> ChangedLabels:
    """Change exactly ``round(ratio * len(index))`` labels; the same arguments give the same result on every machine.

    Args:
        noise: kind and ratio.
        labels: right labels, integers of shape (n,).
        index: of the samples whose labels can change, ascending.
        classes: number of classes.
        seed: of the random draws.

    Raises:
        ExperimentError: the data set has no classes, or too few labels can change.
        DataUnavailableError: the file of the matrix is missing or wrong.
    """
    if classes < 2 or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ExperimentError(
            "data.label_noise: the samples do not have one class each that could be wrong; remove this section. For "
            "noise in inputs that are numbers, use data.sensor_noise"
        )
    weights = transition_weights(noise, classes)
    mistaken = weights.sum(axis=1) > 0
    able = index[mistaken[labels[index]]]
    count = round(noise.ratio * len(index))
    if count > len(able):
        raise ExperimentError(
            f"data.label_noise.ratio = {noise.ratio}: {count} labels must change, but the matrix has mistakes only for "
            f"the classes of {len(able)} samples; lower the ratio, or use another matrix"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    chosen = np.sort(rng.permutation(able)[:count])
    total = np.cumsum(weights, axis=1)[labels[chosen]]
    drawn = np.minimum(rng.random(count) * total[:, -1], np.nextafter(total[:, -1], 0))
    return ChangedLabels(chosen, (total <= drawn[:, None]).sum(axis=1).astype(np.int64), len(index))


def transition_weights(noise: LabelNoise, classes: int) -> NDArray[np.float64]:
    """Return how likely a wrong label of each right class (rows) is each other class (columns).

    Returns:
        Shape (classes, classes). A row adds up to 1, or to 0 for a class that is never mistaken. The diagonal is 0.

    Raises:
        DataUnavailableError: the file of the matrix is missing or wrong.
    """
    weights = _base_weights(noise, classes)
    np.fill_diagonal(weights, 0)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1))


def _base_weights(noise: LabelNoise, classes: int) -> NDArray[np.float64]:
    if noise.kind == "symmetric":
        return np.ones((classes, classes))
    if noise.kind == "pairwise":
        return np.roll(np.eye(classes), 1, axis=1)
    path, content = read_data_file(str(noise.file), noise.sha256, _FILE)
    rows = _parse_rows(path, content, classes)
    if len(rows) != classes:
        raise DataUnavailableError(f"{path}: has {len(rows)} lines, the data set has {classes} classes; write one each")
    return np.array(rows)


def _parse_rows(path: Path, content: bytes, classes: int) -> list[list[float]]:
    rows: list[list[float]] = []
    with report_csv_errors(path):
        lines = list(csv.reader(content.decode("utf-8-sig", "replace").splitlines()))
    for number, words in enumerate(lines, 1):
        if not words:
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            raise DataUnavailableError(f"{path}:{number}: holds text; write numbers only, without a header") from None
        if len(row) != classes or not all(0 <= value < float("inf") for value in row):
            raise DataUnavailableError(f"{path}:{number}: must be {classes} numbers of 0 or more, one for each class")
        rows.append(row)
    return rows
