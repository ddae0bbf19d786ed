"""FedAIoT's matrix Q: how a centrally trained model mistakes the classes of a data set.

Alam et al., "FedAIoT", section 3.2.5, and the thesis, section 2.2.3.5: Q_ij is the part of the samples of class i that
the model labels j. The rows add up to 1; the published code divides by the sums of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Learner
from fedquilt_common.datasets.parts import Split
from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.result_files import read_experiment, read_result
from fedquilt_server.status.run_file_names import MODEL


@dataclass(frozen=True)
class NoiseMatrix:
    """A confusion matrix with normalised rows.

    Attributes:
        rows: float64 of shape (classes, classes): [i, j] is the part of the samples of class i that are labelled j. A
            class without samples has zeros.
        samples: number of samples that were labelled.
        accuracy: part of them that is labelled right.
    """

    rows: NDArray[np.float64]
    samples: int
    accuracy: float

    @property
    def unmistaken(self) -> list[int]:
        """The classes whose labels cannot become wrong, because the model mistakes none of their samples."""
        mistaken = self.rows.sum(axis=1) > self.rows.diagonal()
        return [number for number, one in enumerate(mistaken) if not one]


def count_confusions(right: NDArray[np.integer], given: NDArray[np.integer], classes: int) -> NoiseMatrix:
    """Return the matrix of labels.

    Args:
        right: right classes, integers of shape (n,), n of 1 or more.
        given: classes that the model gives, of the same shape.
        classes: number of classes.
    """
    pairs = right.astype(np.int64) * classes + given
    counts = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    total = counts.sum(axis=1, keepdims=True)
    rows = np.asarray(counts / np.where(total > 0, total, 1), np.float64)
    return NoiseMatrix(rows, len(right), float(counts.trace() / len(right)))


def measure_confusions(experiment: Experiment, model: Arrays, split: Split) -> NoiseMatrix:
    """Label the official samples of a split with a model, and compare.

    Args:
        experiment: names the data set and the model.
        model: parameters and buffers of the experiment's model, or of a variant's.
        split: which samples.

    Raises:
        ExperimentError: the samples do not have one class each.
        PayloadError: the arrays are not those of the model.
    """
    bench = Workbench(experiment)
    check_classes(bench)
    samples = bench.dataset.train if split == "train" else bench.dataset.test
    given = _find_learner(bench, model).predict(model, samples)[-1].argmax(axis=1)
    return count_confusions(samples.y, given, bench.dataset.classes)


def _find_learner(bench: Workbench, model: Arrays) -> Learner:
    """Return the learner of the model with these arrays: FedDF's global model is that of the first variant."""
    shapes = {name: x.shape for name, x in model.items()}
    fitting = (one for one in bench.prototypes if {name: x.shape for name, x in one.init(0).items()} == shapes)
    return next(fitting, bench.learner)


def check_classes(bench: Workbench) -> None:
    """Check that the data set has a class for each sample.

    Raises:
        ExperimentError: it has none.
    """
    if not bench.learns or bench.learning_task.name != "classification":
        raise ExperimentError(
            f"data.set = {bench.experiment.data.set}: its samples have no class each, so no label can be wrong; choose "
            "a data set for classification"
        )


def without_label_noise(experiment: Experiment) -> Experiment:
    """Return the experiment with the right labels: the matrix is that of a model that was trained on them."""
    return experiment.model_copy(update={"data": experiment.data.model_copy(update={"label_noise": None})})


def read_trained(folder: Path) -> tuple[Experiment, Arrays]:
    """Return the experiment and the global model of a finished run.

    Raises:
        RunFolderError: the folder holds no finished run with a global model.
    """
    result, path = read_result(folder), folder / MODEL
    if result.status != "finished" or not path.is_file():
        raise RunFolderError(f"{folder}: the run is {result.status}; finish it first, or name another run folder")
    return read_experiment(folder), FileArrays(path)


def write_matrix(path: Path, rows: Sequence[Sequence[float]]) -> None:
    """Write a matrix as the CSV file that ``data.label_noise`` reads: a line for each right class, no header.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    with report_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(",".join(map(repr, row)) + "\n" for row in rows))
