"""``fedquilt bench round``: what a round costs beside training, through the real broker, coordinator and agents."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.simulate.simulate import make_plan, run_simulation
from fedquilt_server.simulate.supervisor import Memory
from fedquilt_server.status.results import Result
from fedquilt_server.status.terminal import human_bytes

PARTS = ("sending_seconds", "receiving_seconds", "averaging_seconds")


@dataclass(frozen=True)
class BenchResult:
    """The rounds of a bench run, and each process's resident memory in bytes."""

    result: Result
    memory: dict[str, Memory]

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        columns = ("round", "seconds", *PARTS, "bytes_down", "bytes_up", "model_bytes", "clients")
        rows = [row.model_dump(include=set(columns)) for row in self.result.rounds]
        return {
            "rounds": rows,
            "median": {name: median(row[name] for row in rows) for name in columns[1:7]},
            "processes": self._processes(),
        }

    def _processes(self) -> dict[str, Any]:
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
        """As a table for a person."""
        table = Table(title="rounds without training")
        for name in ("round", "seconds", "sending", "receiving", "averaging", "bytes down", "bytes up"):
            table.add_column(name, justify="right")
        for row in self.result.rounds:
            times = [f"{getattr(row, name):.3f}" for name in ("seconds", *PARTS)]
            table.add_row(str(row.round), *times, human_bytes(row.bytes_down), human_bytes(row.bytes_up))
        console = Console()
        console.print(table)
        for name, numbers in self._processes().items():
            console.print(name, {key: human_bytes(value) for key, value in numbers.items()})


def bench_experiment(agents: int, clients: int, megabytes: float, rounds: int) -> Experiment:
    """An experiment of ``rounds`` rounds that trains nothing."""
    return Experiment.model_validate(
        {
            "name": "bench-round",
            "rounds": rounds,
            "data": {"set": "digits", "clients": clients},
            "model": {"name": "ballast", "megabytes": megabytes},
            "algorithm": {"name": "echo"},
            "participation": {"per_round": clients, "quorum": clients, "deadline": 3600.0},
            "fleet": [{"kind": "bench", "agents": agents, "clients": clients}],
        }
    )


def bench_rounds(agents: int, clients: int, megabytes: float, rounds: int, out: Path | None) -> BenchResult:
    """Run it; raises what ``run_simulation`` raises."""
    experiment = bench_experiment(agents, clients, megabytes, rounds)
    with tempfile.TemporaryDirectory(prefix="fedquilt-bench-") as folder:
        done = run_simulation(make_plan(experiment, out or Path(folder) / "run"), lambda _: None)
    assert done is not None  # noqa: S101 - nothing asked it to stop
    return BenchResult(done.result, done.memory)
