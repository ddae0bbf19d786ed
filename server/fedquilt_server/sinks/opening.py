"""Open the sinks that a command line names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedquilt_common.errors import ExperimentError, PackageMissingError, how_to_install
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.sinks.feeder import SinkFeeder
from fedquilt_server.sinks.sink import Sink
from fedquilt_server.status.console import print_message
from fedquilt_server.status.settings import flatten
from fedquilt_server.status.snapshot import Snapshot

TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", help="Write the results live as event files below this folder.")
]
Mlflow = Annotated[
    str | None, typer.Option("--mlflow", metavar="URI", help="Send the results live to this MLflow server.")
]


@dataclass(frozen=True)
class Sinks:
    """The open sinks of a run; there may be none."""

    feeders: Sequence[SinkFeeder] = ()

    def show(self, snapshot: Snapshot) -> None:
        """Pass a snapshot on; returns at once."""
        for feeder in self.feeders:
            feeder.show(snapshot)

    def pass_on(self, current: Callable[[], Snapshot]) -> Callable[[], Snapshot]:
        """Return a function that passes on what ``current`` returns, and returns it."""

        def shown() -> Snapshot:
            snapshot = current()
            self.show(snapshot)
            return snapshot

        return shown


@contextmanager
def open_sinks(tensorboard: Path | None, mlflow: str | None, experiment: Experiment) -> Iterator[Sinks]:
    """Open the sinks until the block ends; it then waits some seconds for what they still have to write.

    Args:
        tensorboard: TensorBoard's log folder; None without TensorBoard.
        mlflow: MLflow's tracking URI; None without MLflow.
        experiment: the experiment, whose name and settings MLflow gets.

    Raises:
        PackageMissingError: the package of a sink is not installed.
        ExperimentError: the URI cannot be used.
    """
    sinks = Sinks(list(_feeders(tensorboard, mlflow, experiment)))
    for feeder in sinks.feeders:
        feeder.start()
    try:
        yield sinks
    finally:
        for feeder in sinks.feeders:
            feeder.close()


def _feeders(tensorboard: Path | None, mlflow: str | None, experiment: Experiment) -> Iterator[SinkFeeder]:
    if tensorboard is not None:
        _require("tensorboard", "tensorboard")
        yield SinkFeeder("TensorBoard", _tensorboard_opener(tensorboard), print_message)
    if mlflow is not None:
        _require("mlflow", "mlflow")
        if "://" not in mlflow:
            raise ExperimentError(f"--mlflow {mlflow}: give the server's URI, such as http://127.0.0.1:5000")
        settings = dict(flatten(experiment.model_dump(mode="json")))
        yield SinkFeeder("MLflow", _mlflow_opener(mlflow, experiment.name, settings), print_message)


def _require(package: str, extra: str) -> None:
    """Check that a package is installed, without loading it.

    Raises:
        PackageMissingError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise PackageMissingError(f"--{extra} needs the Python package {package}: {how_to_install(extra)}")


def _tensorboard_opener(folder: Path) -> Callable[[str], Sink]:
    def open_sink(run: str) -> Sink:
        from fedquilt_server.sinks.tensorboard import TensorBoardSink  # it takes a second to load

        return TensorBoardSink(folder / run)

    return open_sink


def _mlflow_opener(uri: str, experiment: str, settings: Mapping[str, Any]) -> Callable[[str], Sink]:
    def open_sink(run: str) -> Sink:
        from fedquilt_server.sinks.mlflow import MlflowSink  # it takes seconds to load

        return MlflowSink(uri, experiment, run, settings)

    return open_sink
