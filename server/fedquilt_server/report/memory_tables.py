"""Tables of the memory that training takes: for each group and precision, and for each client (FedAIoT, table 8)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from fedquilt_server.report.groups import RunGroup
from fedquilt_server.report.mean_deviation import MeanDeviation, mean_deviation
from fedquilt_server.report.table import Cell, Column, ReportTable
from fedquilt_server.status.training_memory import TrainingMemory

_PROCESS = "resident memory of the training process, torch and data set included"
_GPU = "memory of torch's tensors on the GPU"


def memory_table(groups: Sequence[RunGroup]) -> ReportTable:
    """Return the peak memory of the clients of each group, for each precision that some of them train in."""
    columns = (
        Column("group", "group"), Column("precision", "precision"), Column("runs", "runs", "count"),
        Column("clients", "clients", "count", "clients that trained in some run"),
        Column("memory_peak_mean", "peak memory, mean", "bytes", f"{_PROCESS}: mean over the clients"),
        Column("memory_peak", "peak memory, highest", "bytes", f"{_PROCESS}: highest over the clients"),
        Column("gpu_memory_peak_mean", "GPU peak memory, mean", "bytes", f"{_GPU}: mean over the clients"),
        Column("gpu_memory_peak", "GPU peak memory, highest", "bytes", f"{_GPU}: highest over the clients"),
    )  # fmt: skip
    rows = tuple(_group_row(group, precision) for group in groups for precision in _precisions(group))
    meaning = (
        "Peak memory of a training, as the boards measured it. Mean \N{PLUS-MINUS SIGN} sample standard deviation over "
        "the runs of a group; each client that reports it counts with the mean of its trainings."
    )
    return ReportTable("memory", "Memory of training", meaning, columns, rows)


def client_memory_table(groups: Sequence[RunGroup]) -> ReportTable:
    """Return the peak memory of each client of each run."""
    columns = (
        Column("group", "group"), Column("seed", "seed", "count"), Column("client", "client"),
        Column("precision", "precision"), Column("trainings", "trainings", "count"),
        Column("memory_peak_mean", "peak memory, mean", "bytes", f"{_PROCESS}: mean over the trainings"),
        Column("memory_peak", "peak memory, highest", "bytes", f"{_PROCESS}: highest over the trainings"),
        Column("gpu_memory_peak_mean", "GPU peak memory, mean", "bytes", f"{_GPU}: mean over the trainings"),
        Column("gpu_memory_peak", "GPU peak memory, highest", "bytes", f"{_GPU}: highest over the trainings"),
    )  # fmt: skip
    rows = tuple(
        (group.name, run.seed, str(one.client), one.precision, one.trainings,
         one.memory_peak_mean, one.memory_peak, one.gpu_memory_peak_mean, one.gpu_memory_peak)
        for group in groups for run in group.runs for one in (run.result.memory if run.result else ())
    )  # fmt: skip
    meaning = "Peak memory of the trainings of each client, as the boards measured it."
    return ReportTable("memory-clients", "Memory of training by client", meaning, columns, rows)


def _precisions(group: RunGroup) -> list[str]:
    return list(dict.fromkeys(one.precision for run in group.runs if run.result for one in run.result.memory))


def _group_row(group: RunGroup, precision: str) -> tuple[Cell, ...]:
    of_runs = [[one for one in run.result.memory if one.precision == precision] for run in group.runs if run.result]
    clients = len({one.client for of_run in of_runs for one in of_run})

    def over_runs(
        value: Callable[[TrainingMemory], float | None], reduce: Callable[[Iterable[float]], float]
    ) -> MeanDeviation | None:
        found = ([number for one in of_run if (number := value(one)) is not None] for of_run in of_runs)
        return mean_deviation(reduce(numbers) if numbers else None for numbers in found)

    return (
        group.name, precision, len(group.runs), clients,
        over_runs(lambda one: one.memory_peak_mean, statistics.fmean), over_runs(lambda one: one.memory_peak, max),
        over_runs(lambda one: one.gpu_memory_peak_mean, statistics.fmean),
        over_runs(lambda one: one.gpu_memory_peak, max),
    )  # fmt: skip
