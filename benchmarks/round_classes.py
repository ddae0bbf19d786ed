"""Accuracy of the global model on the classes that a round's clients have samples of, and on the other classes.

    python benchmarks/round_classes.py "runs/fedreb-small/data.set=cifar10,seed=1,method=fedreb" --to round_classes

It reads the folders of finished runs, and loads their data set to count the samples of each client. A class of which
the round's clients have less than a hundredth of their samples counts as missing. A round needs evaluation by class,
which classifiers have. With ``--to``, the results are appended to a file of benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from provenance import append_result, commit, machine

from fedquilt_common.data_tools.client_samples import count_client_targets
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.experiment_tools import ExperimentTools

RESULTS = Path(__file__).parent / "results"
LEAST = 0.01
"""Part of the round's samples below which a class is missing."""


@dataclass(frozen=True)
class SplitAccuracy:
    """Accuracy by class, of all evaluated rounds together.

    Attributes:
        missing_classes: mean number of classes that are missing in a round.
        missing: mean accuracy on these; None if no class is ever missing.
        present: mean accuracy on the others.
    """

    missing_classes: float
    missing: float | None
    present: float


def split_accuracy(samples: NDArray[np.int64], accuracy: NDArray[np.float64]) -> SplitAccuracy:
    """Return the accuracy on classes that are missing in a round, and on the others.

    Args:
        samples: of each class that the round's clients have, shape (rounds, classes).
        accuracy: of the model after the round on each class, in the same shape.
    """
    missing = samples < LEAST * samples.sum(axis=1, keepdims=True)
    lowest = float(accuracy[missing].mean()) if missing.any() else None
    return SplitAccuracy(float(missing.sum(axis=1).mean()), lowest, float(accuracy[~missing].mean()))


def read_run(run: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return samples and accuracy, each of shape (rounds, classes), from a run's folder."""
    groups = count_client_targets(ExperimentTools(load_experiment(run / "experiment.yaml"), "*")).groups
    counts = np.array([group.counts for group in groups])
    clients = defaultdict[int, list[int]](list)
    for row in _rows(run / "replies.csv"):
        if row["exchange"] == "0" and row["outcome"] == "accepted":
            clients[int(row["round"])].append(int(row["client"]))
    accuracy = defaultdict[int, list[float]](list)
    for row in _rows(run / "classes.csv"):
        accuracy[int(row["round"])].append(float(row["accuracy"]))
    rounds = sorted(accuracy)
    return np.array([counts[clients[n]].sum(axis=0) for n in rounds]), np.array([accuracy[n] for n in rounds])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def describe_run(run: Path) -> dict[str, Any]:
    """Return a line of results for a run."""
    sweep = load_experiment(run / "experiment.yaml").name
    return {"sweep": sweep, "run": run.name, **asdict(split_accuracy(*read_run(run)))}


def main() -> None:
    """Print the split accuracy of the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--to", help="name of the file in benchmarks/results, without .jsonl")
    options = parser.parse_args()
    origin = {"commit": commit(), "machine": machine()}
    for run in options.runs:
        line = describe_run(run)
        print(line)
        if options.to:
            append_result(RESULTS / f"{options.to}.jsonl", {**origin, **line})


if __name__ == "__main__":
    main()
