"""A run's folder as an object: its experiment, its rounds and its model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedquilt_common.errors import NoGlobalModelError, PackageMissingError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.types import Arrays
from fedquilt_server.runs.open_files import read_extra
from fedquilt_server.runs.result_files import read_model, read_result
from fedquilt_server.runs.tables import round_records
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.run_file_names import EXPERIMENT, MODEL

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


@dataclass(frozen=True)
class Run:
    """A run in its folder; ``simulate`` and ``load_run`` return one.

    Attributes:
        folder: the run folder; its files are described in docs/machine.md.
        experiment: the experiment with every default filled in.
        result: the content of ``result.json``.
    """

    folder: Path
    experiment: Experiment = field(repr=False)
    result: Result = field(repr=False)

    @property
    def rounds(self) -> list[RoundResult]:
        """One record for each finished round, in order: scores, seconds, bytes, clients."""
        return self.result.rounds

    def frame(self) -> pd.DataFrame:
        """Return the rounds as a pandas DataFrame, one row a round, with the columns of ``rounds.csv``.

        Raises:
            PackageMissingError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise PackageMissingError(
                "frame() needs the Python package pandas: run `pip install pandas`, or use `rounds`"
            ) from None
        return pd.DataFrame(round_records(self.rounds))

    def model(self) -> nn.Module:
        """Build the experiment's model, load the final global weights and return it in evaluation mode.

        The data set is loaded too: it gives the shape of a sample and the number of classes. FedDF's global model is
        the model of its first kind of clients.

        Raises:
            NoGlobalModelError: the algorithm has no model for all clients.
            RunFolderError: the run is not finished, or its model file is damaged.
            DataUnavailableError: the data set's files are missing.
        """
        from fedquilt_common.training.module_arrays import load_arrays

        arrays = _global_arrays(self)
        module = next((module for module in self._modules() if _fits(module, arrays)), None)
        if module is None:
            raise RunFolderError(
                f"{self.folder / MODEL} does not fit the model '{self.experiment.model.name}' of the experiment. "
                "If the model is your own, use the code that the run used"
            )
        load_arrays(module, arrays)
        return module.eval()

    def extra(self) -> Arrays:
        """Return what the algorithm keeps in ``State.extra`` after the last finished round; empty if nothing.

        Server optimisers keep their moments there. An algorithm with several global models keeps them there, too.

        Raises:
            RunFolderError: the run folder's journal is missing or damaged, or the file is.
        """
        return read_extra(self.folder)

    def _modules(self) -> Iterator[nn.Module]:
        """Build the experiment's model, then those of its clients."""
        from fedquilt_common.experiment_tools import ExperimentTools

        tools = ExperimentTools(self.experiment, ("*",))  # the caller's own experiment names these packages
        return (tools.model_builder(model)() for model in (self.experiment.model, *self.experiment.models))


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Load a run from its folder. A run that was interrupted has the rounds that it finished, and no model yet.

    Raises:
        RunFolderError: the folder is missing, holds no result, or holds a damaged one.
    """
    place = Path(folder)
    result = read_result(place)
    return Run(place, load_experiment(place / EXPERIMENT), result)


def _global_arrays(run: Run) -> Arrays:
    from fedquilt_common.algorithms import DIAGNOSTICS

    arrays, algorithm = read_model(run.folder, run.result), run.experiment.algorithm.name
    if algorithm in DIAGNOSTICS or not len(arrays):
        raise NoGlobalModelError(
            f"the algorithm '{algorithm}' has no global model: read the scores in `rounds`, export a client's model "
            "with `fedquilt memory export`, or read what the algorithm keeps on the coordinator with `extra()`"
        )
    return arrays


def _fits(module: nn.Module, arrays: Arrays) -> bool:
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return shapes == {name: tuple(arrays[name].shape) for name in arrays}
