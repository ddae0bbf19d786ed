"""Measures what each part of a federation costs in a round without training; history in benchmarks/results/tree.jsonl.

    python benchmarks/tree.py                      measure the full grid (under 12 minutes), append one line
    python benchmarks/tree.py --quick              a few small cases (under a minute), printed only
    python benchmarks/tree.py --dry-run            the full grid, printed only
    python benchmarks/tree.py --tables             print the tables of docs/scale.md from the results, measure nothing
    python benchmarks/tree.py --tables --write     write them into docs/scale.md, and draw its picture

Each case is a simulation as in ``fedquilt bench round`` that is stopped after some rounds. The processor time of each
process is sampled when a round has ended, so neither the start nor the first round counts. Memory is the highest
resident memory of a process; bytes on disk are those that the kernel has written for it. ``tree_model.py`` fits a model
to the cases; cases marked as held out only check it. The command continues after an interruption. Linux only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from process_watch import role_of
from provenance import append_result, commit, machine
from resume import Progress, end_on_signals
from sum_costs import measure_sums

from fedquilt_common.process.process_memory import PROC, peak_bytes
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.tools.bench import bench_experiment

ROOT: Final = Path(__file__).parents[1]
HISTORY: Final = ROOT / "benchmarks" / "results" / "tree.jsonl"
ROLES: Final = ("broker", "coordinator", "agent", "worker")
ENDLESS: Final = 10_000
"""Rounds of an experiment that is stopped before its end."""
MEGABYTES_OF_REPLIES: Final = 1000
"""Most that all replies of a round may have together."""
SEPARATE_AGENTS: Final = 4
"""Up to this number of agents, each process is started by itself, and its memory is that on a machine of its own."""


@dataclass(frozen=True)
class Case:
    """One measurement: agents, clients of all of them, model size in MB (10**6 bytes).

    Args:
        relay: whether the agents add their clients' replies up.
        held_out: whether the model is not fitted to it.
    """

    agents: int
    clients: int
    megabytes: float
    relay: bool
    held_out: bool = False


SIZES: Final = tuple(
    (clients, megabytes)
    for megabytes in (0.01, 0.1, 1.0, 10.0)
    for clients in (4, 100, 400, 1000, 4000)
    if clients * megabytes <= MEGABYTES_OF_REPLIES
)
GRID: Final = (
    *(Case(4, *size, relay) for relay in (False, True) for size in SIZES if size[0] >= 100 or not relay),
    *(Case(agents, agents, megabytes, relay=False) for agents in (20, 60) for megabytes in (0.01, 1.0)),
    *(Case(agents, 400, megabytes, relay=True) for agents in (20, 60) for megabytes in (0.01, 1.0)),
    *(Case(4, 2000, 0.05, relay, held_out=True) for relay in (False, True)),
    *(Case(12, 120, 3.0, relay, held_out=True) for relay in (False, True)),
    Case(8, 12_000, 0.01, relay=True, held_out=True),
)
QUICK: Final = (Case(2, 4, 0.01, relay=False), Case(2, 40, 0.1, relay=False), Case(2, 40, 0.1, relay=True))


@dataclass(frozen=True)
class Sample:
    """What the processes have used from their start to the end of a round.

    Attributes:
        rounds: rounds that have ended.
        processor: processor seconds of each role.
        disk: bytes written to disk by each role.
    """

    rounds: int
    processor: Mapping[str, float]
    disk: Mapping[str, int]


@dataclass
class Watch:
    """Samples the processes of a simulation when rounds end.

    Args:
        seconds: how long to measure after the first round.
        least: rounds to measure at least.
    """

    seconds: float
    least: int
    samples: list[Sample] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    rows: list[RoundResult] = field(default_factory=list)
    _begun: float = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Take a sample if another round has ended."""
        if len(snapshot.history) == len(self.rows):
            return
        self._begun = self._begun or time.monotonic()
        self.rows = snapshot.history
        self.samples.append(self._sample())

    def is_complete(self) -> bool:
        """Whether enough rounds have been measured."""
        measured = len(self.rows) - self.samples[0].rounds if self.samples else 0
        return measured >= self.least and time.monotonic() - self._begun >= self.seconds

    def _sample(self) -> Sample:
        processor, disk = defaultdict[str, float](float), defaultdict[str, int](int)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                role = role_of("\0".join(process.cmdline()).encode(), process.name())
                times = process.cpu_times()
                processor[role] += times.user + times.system
                disk[role] += process.io_counters().write_bytes
                self.peaks[role] = max(self.peaks.get(role, 0), peak_bytes(PROC / str(process.pid)) or 0)
        return Sample(len(self.rows), processor, disk)


def measure(case: Case, seconds: float, least: int) -> dict[str, Any]:
    """Run a case's rounds, and return what a line has of them.

    Raises:
        RuntimeError: the simulation ended by itself.
    """
    experiment = bench_experiment(case.agents, case.clients, case.megabytes, ENDLESS, relay=case.relay)
    watch = Watch(seconds, least)
    with tempfile.TemporaryDirectory(prefix="fedquilt-tree-") as folder:
        plan = replace(make_plan(experiment, Path(folder) / "run"), forks=case.agents > SEPARATE_AGENTS)
        if run_simulation(plan, watch.show, watch.is_complete) is not None:
            raise RuntimeError(f"the simulation of {case} ended after {len(watch.rows)} rounds")
    return report(watch)


def report(watch: Watch) -> dict[str, Any]:
    """Return a round's seconds and bytes (medians), each role's processor seconds and bytes on disk, and the peaks."""
    first, last = watch.samples[0], watch.samples[-1]
    count = last.rounds - first.rounds
    rows = watch.rows[first.rounds :]
    used = {role: last.processor.get(role, 0.0) - first.processor.get(role, 0.0) for role in ROLES}
    written = {role: last.disk.get(role, 0) - first.disk.get(role, 0) for role in ROLES}
    return {
        "rounds": count,
        "seconds": [round(row.seconds, 4) for row in rows],
        "median_seconds": round(median(row.seconds for row in rows), 4),
        "bytes_down": median(row.bytes_down for row in rows),
        "bytes_up": median(row.bytes_up for row in rows),
        "processor_seconds": {role: round(value / count, 5) for role, value in used.items()},
        "disk_bytes": {role: round(value / count) for role, value in written.items()},
        "peak_bytes": {role: watch.peaks[role] for role in ROLES},
    }


def measure_all(cases: Sequence[Case], progress: Progress, seconds: float, least: int) -> None:
    """Measure the cases that are not measured yet, and print each."""
    for case in cases:
        line = progress.part(asdict(case), partial(measure, case, seconds, least))
        shown = (*asdict(case), "rounds", "median_seconds", "processor_seconds")
        print(json.dumps({key: line[key] for key in shown}), flush=True)


def main() -> None:
    """Measure a grid, or print the tables of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure a few small cases, and only print them")
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    parser.add_argument("--tables", action="store_true", help="print the tables of the page, measure nothing")
    parser.add_argument("--write", action="store_true", help="with --tables: write them into the page, and draw")
    options = parser.parse_args()
    end_on_signals()
    if options.tables:
        from tree_chart import draw
        from tree_tables import PAGE, latest, make_tables, predicted_costs, write_tables

        tables = make_tables(*latest())
        print("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
        if options.write:
            write_tables(PAGE, tables)
            draw(predicted_costs(*latest()))
        return
    cases, name = (QUICK, "quick") if options.quick else (GRID, "full")
    version = commit()
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": "python benchmarks/tree.py",
        "commit": version,
        "machine": machine(),
    }
    with Progress(ROOT / "build" / "tree" / name / "progress.jsonl", version) as progress:
        measure_all(cases, progress, *((1.0, 2) if options.quick else (4.0, 2)))
        if not (options.dry_run or options.quick):
            append_result(HISTORY, {**head, "cases": progress.lines, "sums": measure_sums()})
        progress.forget()


if __name__ == "__main__":
    main()
