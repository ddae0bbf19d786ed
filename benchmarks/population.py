"""Measures what clients cost that a run has, but rarely asks; history in benchmarks/results/population.jsonl.

    python benchmarks/population.py              measure (about 3 minutes), print, append one line
    python benchmarks/population.py --clients 1000 --dry-run

A simulation with 4 agents asks 20 clients a round, each of which has two samples of four numbers. What grows with the
number of all clients is the memory of each process, the time of the first round and of the others. ``manifests`` are
the messages that name the clients of a round to all boards, for a round that asks every second client of twice as many.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from provenance import append_result, commit, machine
from resume import end_on_signals
from tree import Watch, report

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Dataset, Examples
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation

HERE: Final = Path(__file__).parent
HISTORY: Final = HERE / "results" / "population.jsonl"
CLIENTS: Final = (400, 100_000, 200_000, 400_000)
ASKED: Final = (1000, 10_000, 100_000, 500_000)
"""Numbers of clients that a manifest names."""
COUNT: Final = "POPULATION_CLIENTS"
"""Environment variable with the number of clients, for ``sensors`` in each process."""


def sensors(folder: Path | None = None) -> Dataset:
    """Return random samples of two classes, two for each client; experiments name this function."""
    rng, samples = np.random.default_rng(1), 2 * int(os.environ[COUNT])
    x, y = rng.normal(size=(samples, 4)).astype(np.float32), rng.integers(0, 2, samples)
    return Dataset("sensors", Examples(x, y), Examples(x[:100], y[:100]), 2)


def population(clients: int) -> Experiment:
    """Return an experiment of which each round asks 20 clients."""
    return Experiment.model_validate({
        "name": "population", "seed": 1, "rounds": 10_000,
        "data": {"set": "population:sensors", "clients": clients, "partition": {"scheme": "uniform"}},
        "model": {"name": "mlp", "hidden": [10]},
        "algorithm": {"name": "fedavg"},
        "participation": {"per_round": 20, "quorum": 20, "deadline": 900.0},
        "training": {"epochs": 1, "batch": 2, "lr": 0.1},
        "fleet": [{"kind": "sensor", "agents": 4, "clients": clients}],
    })  # fmt: skip


def measure(clients: int) -> dict[str, Any]:
    """Simulate some rounds, and return their times, the peaks of memory and the size of the journal."""
    os.environ[COUNT] = str(clients)
    watch, begin = Watch(0.0, 2), time.monotonic()
    opened: list[float] = []

    def is_complete() -> bool:
        opened.extend([time.monotonic() - begin] * (len(watch.rows) > len(opened)))
        return watch.is_complete()

    with tempfile.TemporaryDirectory(prefix="fedquilt-population-") as folder:
        plan = make_plan(population(clients), Path(folder) / "run", python_path=(str(HERE),))
        run_simulation(plan, watch.show, is_complete)
        journal = (plan.folder / "journal.sqlite").stat().st_size
    found = report(watch)
    return {
        "clients": clients, "first_round_seconds": round(opened[0], 1), "round_seconds": found["median_seconds"],
        "processor_seconds": found["processor_seconds"], "peak_bytes": found["peak_bytes"], "journal_bytes": journal,
    }  # fmt: skip


def measure_manifest(asked: int) -> dict[str, Any]:
    """Return the bytes of a manifest, and the seconds in which a board reads it.

    Args:
        asked: clients that the round asks.
    """
    clients = list(range(0, 2 * asked, 2))
    patch = PatchMessage(slot=0, digest="0" * 64, size=10_000)
    task = TaskMessage(clients=clients, kind="train", patches=[0])
    known = {str(client): (1, 0) for client in clients}
    plain = RoundMessage(run="population", round=2, exchange=0, patches=[patch], tasks=[task])
    found: dict[str, Any] = {"asked": asked}
    for name, message in (("first", plain), ("later", plain.model_copy(update={"since": known}))):
        content = message.encode()
        begin = time.process_time()
        RoundMessage.model_validate_json(content)
        found |= {f"{name}_bytes": len(content), f"{name}_read_seconds": round(time.process_time() - begin, 4)}
    return found


def main() -> None:
    """Measure each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS), help="numbers of clients")
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    options = parser.parse_args()
    end_on_signals()
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": "python benchmarks/population.py --clients " + " ".join(map(str, options.clients)),
        "commit": commit(),
        "machine": machine(),
    }
    rows = [measure(clients) for clients in options.clients]
    line = {**head, "rows": rows, "manifests": measure_all_manifests(ASKED)}
    print(json.dumps(line, indent=2))
    if not options.dry_run:
        append_result(HISTORY, line)


def measure_all_manifests(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the manifests of rounds that ask these numbers of clients."""
    return [measure_manifest(asked) for asked in numbers]


if __name__ == "__main__":
    main()
