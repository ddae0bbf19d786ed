"""Measure rounds without training for ``fedquilt bench round``, with a real broker, coordinator and agents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.terminal import make_console
from fedquilt_server.simulate.memory_samples import Memory
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.status.results import Result
from fedquilt_server.status.units import DASH, traffic

PARTS = ("sending_seconds", "receiving_seconds", "averaging_seconds")
_MEMORY_COLUMNS: Final = {
    "idle_bytes": "idle", "peak_bytes": "peak", "growth_bytes": "growth", "worker_peak_bytes": "training, peak"
}  # fmt: skip
"""Key of a process's memory -> heading."""


@dataclass(frozen=True)
class BenchResult:
    """The result of a bench run, and the peak resident memory of each process in bytes."""

    result: Result
    memory: dict[str, Memory]

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        columns = ("round", "seconds", *PARTS, "bytes_down", "bytes_up", "model_bytes", "clients")
        rows = [row.model_dump(include=set(columns)) for row in self.result.rounds]
        return {
            "rounds": rows,
            "median": {name: median(row[name] for row in rows) for name in columns[1:7]},
            "processes": self._memory_rows(),
        }

    def _memory_rows(self) -> dict[str, Any]:
        memory = {name: {"peak_bytes": m.peak, "worker_peak_bytes": m.workers} for name, m in self.memory.items()}
        for name in ("broker", "coordinator"):
            memory.get(name, {}).pop("worker_peak_bytes", None)
        own = self.result.coordinator_memory
        memory["coordinator"] = {
            "idle_bytes": own.idle,
            "peak_bytes": own.peak,
            "growth_bytes": own.peak - own.idle,
        }
        return memory

    def print(self) -> None:
        """Print the rounds and the memory of each process as tables."""
        table = Table(title="rounds without training")
        for name in ("round", "seconds", "sending", "receiving", "averaging", "bytes down", "bytes up"):
            table.add_column(name, justify="right")
        for row in self.result.rounds:
            times = [f"{getattr(row, name):.3f}" for name in ("seconds", *PARTS)]
            table.add_row(str(row.round), *times, traffic(row.bytes_down), traffic(row.bytes_up))
        console = make_console()
        console.print(table)
        console.print(self._memory_table())

    def _memory_table(self) -> Table:
        table = Table("process", title="memory")
        for heading in _MEMORY_COLUMNS.values():
            table.add_column(heading, justify="right")
        for name, numbers in self._memory_rows().items():
            table.add_row(name, *(traffic(numbers[key]) if key in numbers else DASH for key in _MEMORY_COLUMNS))
        return table


def bench_experiment(
    agents: int, clients: int, megabytes: float, rounds: int, *, secure: bool = False, relay: bool = False
) -> Experiment:
    """Return an experiment without training.

    Args:
        agents: number of agent processes.
        clients: number of clients of all agents together.
        megabytes: size of the model in millions of bytes.
        rounds: number of rounds.
        secure: with secure aggregation.
        relay: with exact sums, and agents that add replies up.
    """
    return Experiment.model_validate(
        {
            "name": "bench-round",
            "rounds": rounds,
            "data": {"set": "digits", "clients": clients},
            "model": {"name": "ballast", "megabytes": megabytes},
            "algorithm": {"name": "echo"},
            "participation": {"per_round": clients, "quorum": clients, "deadline": 3600.0},
            "secure_aggregation": secure,
            "exact_sums": relay,
            "fleet": [{"kind": "bench", "agents": agents, "clients": clients, "relay": relay}],
        }
    )


def bench_rounds(
    agents: int,
    clients: int,
    megabytes: float,
    rounds: int,
    out: Path | None,
    *,
    secure: bool = False,
    relay: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> BenchResult | None:
    """Run a ``bench_experiment``; returns None if ``should_stop`` stopped it before its end.

    Args:
        agents: number of agent processes.
        clients: number of clients of all agents together.
        megabytes: size of the model in millions of bytes.
        rounds: number of rounds.
        out: run folder to keep; None uses a temporary one.
        secure: with secure aggregation.
        relay: with exact sums, and agents that add replies up.
        should_stop: called several times a second.

    Raises:
        FedquiltError: as ``run_simulation``.
    """
    experiment = bench_experiment(agents, clients, megabytes, rounds, secure=secure, relay=relay)
    with tempfile.TemporaryDirectory(prefix="fedquilt-bench-") as folder:
        plan = make_plan(experiment, out or Path(folder) / "run")
        # A fork has the modules of all training processes, and the memory of one that needs few of them is measured.
        done = run_simulation(replace(plan, forks=False), lambda _: None, should_stop)
    return None if done is None else BenchResult(done.result, done.memory)
