"""Reads a finished run for its audit: its experiment, the clients that took part, its models."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fedquilt_common.cli import run as run_command
from fedquilt_common.error_messages import last_error
from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.types import Arrays, ClientId
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.central.plan import CENTRAL
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.journal import peek_meta
from fedquilt_server.runs.partition_check import PARTITION, check_partition
from fedquilt_server.runs.result_files import read_experiment, read_model, read_result
from fedquilt_server.status.results import Result
from fedquilt_server.status.run_file_names import JOURNAL, REPLIES

TASKS: Final = ("classification", "regression")
"""Learning tasks in which each sample has a loss of its own."""
AGENTS: Final = "agents"
"""Folder of a simulated run with the state of its boards."""


class AuditBench(Workbench):
    """Derives data set and partition from the experiment of a run, even of a central training."""

    @cached_property
    def holdout(self) -> float:
        """The share of its samples that each client kept for testing."""
        if self.experiment.algorithm.name == CENTRAL:
            return self.experiment.data.holdout or 0.0
        return super().holdout


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        folder: the run folder; nothing in it is changed.
        result: the content of ``result.json``.
        bench: derives the samples and models from the experiment.
    """

    folder: Path
    result: Result
    bench: AuditBench

    @cached_property
    def global_model(self) -> Arrays:
        """The global model; without arrays if the algorithm has none. Raises ``RunFolderError`` as ``read_model``."""
        return read_model(self.folder, self.result)

    @cached_property
    def clients(self) -> frozenset[ClientId]:
        """The clients with an accepted reply; all of them in a central training.

        Raises:
            RunFolderError: ``replies.csv`` is missing or damaged.
        """
        if self.result.algorithm == CENTRAL:
            return frozenset(range(self.bench.experiment.data.clients))
        path = self.folder / REPLIES
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            found = frozenset(int(row["client"]) for row in rows if row["outcome"] == "accepted")
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise RunFolderError(
                f"{path}: is missing or damaged, so the clients that trained are unknown ({error}); name another run"
            ) from None
        if not found:
            raise RunFolderError(f"{path}: no reply was accepted, so the run has no members; name another run")
        return found


def read_finished(folder: Path) -> FinishedRun:
    """Read a finished run, and check that it can be audited.

    Raises:
        RunFolderError: the folder holds no finished run or a damaged one, or its clients had other samples.
        ExperimentError: its members are unknown, or its samples have no loss of their own.
        DataUnavailableError: the data set is missing or damaged.
    """
    result = read_result(folder)
    if result.status != "finished":
        raise RunFolderError(
            f"{folder}: the run is {result.status}, so it has released no model; finish it, or name another run"
        )
    bench = AuditBench(read_experiment(folder))
    _check(bench)
    check_partition(folder, peek_meta(folder / JOURNAL, PARTITION), bench.partition_digest())
    return FinishedRun(folder, result, bench)


def _check(bench: AuditBench) -> None:
    experiment, data = bench.experiment, bench.experiment.data
    if not bench.learns:
        raise ExperimentError(f"algorithm.name = {experiment.algorithm.name}: it trains no model; audit another run")
    if data.delivery == "own":
        raise ExperimentError(
            "data.delivery = own: the clients' samples have never left their boards, so nobody can say here which "
            "samples are members; audit a run whose samples this machine has"
        )
    for key in ("label_noise", "sensor_noise"):
        if getattr(data, key) is not None:
            raise ExperimentError(
                f"data.{key}: members have noise and non-members have none, which an attack would find instead; audit "
                "the run of an experiment without it"
            )
    if bench.learning_task.name not in TASKS:
        raise ExperimentError(
            f"data.set = {data.set}: a sample of {bench.learning_task.name} has no loss of its own; audit a run of "
            "classification or regression"
        )


def find_states(folder: Path) -> list[Path]:
    """Return the state folders of the boards of a simulated run; none for other runs."""
    return sorted(path for path in (folder / AGENTS).glob("*") if (path / "runs").is_dir())


def read_own_models(states: Sequence[Path], run: str, scratch: Path) -> dict[ClientId, Arrays]:
    """Return the private memory of each client that has one, as ``fedquilt memory`` exports it.

    Args:
        states: state folders of boards.
        run: identifier of the run.
        scratch: folder for the exported files, which are read lazily.

    Raises:
        RunFolderError: a folder is not a board's state, or a memory is damaged.
    """
    found: dict[ClientId, Arrays] = {}
    for state in states:
        for row in json.loads(_run_memory("list", state, run, "--json")):
            file, client = scratch / f"{len(found)}.safetensors", row["client"]
            _run_memory("export", state, run, "--client", str(client), "--out", str(file))
            found[client] = FileArrays(file)
    return found


def _run_memory(command: str, state: Path, run: str, *options: str) -> Any:
    """Run ``fedquilt memory`` in this process: the boards' half of the program alone knows their state."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run_command(["memory", command, "--state", str(state), "--run", run, *options])
    if code:
        text = errors.getvalue().strip()
        raise RunFolderError(f"--state {state}: {last_error(text) or text}")
    return output.getvalue()
