"""Measures what the relay of a site costs in a round without training; history in benchmarks/results/site_relays.jsonl.

    python benchmarks/site_relays.py            measure (about 4 minutes), print, append one line
    python benchmarks/site_relays.py --quick    one small case, printed only

A coordinator at a central Mosquitto runs rounds with boards behind the broker of a site, which sends each reply to
``fedquilt relay``. It adds them up and sends one sum. Its processor time is sampled after the first and the last round,
so neither the start nor the first round counts. All connections use TLS. ``tree_model.py`` fits a model to the cases;
those marked as held out only check it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from provenance import append_result, commit, machine
from resume import end_on_signals
from sites import LONGEST_SECONDS, SITE, child
from tests.support.sites import broker_tree

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.process.process_memory import PROC, peak_bytes
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.tools.bench import bench_experiment

HISTORY: Final = Path(__file__).parent / "results" / "site_relays.jsonl"
LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Case:
    """One measurement: boards, clients of all of them, model size in MB (10**6 bytes), rounds.

    Args:
        held_out: whether the model is not fitted to it.
    """

    agents: int
    clients: int
    megabytes: float
    rounds: int
    held_out: bool = False


GRID: Final = (
    *(Case(4, 20, megabytes, 31) for megabytes in (0.01, 0.1, 1.0)),
    *(Case(4, 100, megabytes, rounds) for megabytes, rounds in ((0.01, 21), (0.1, 16), (1.0, 6))),
    *(Case(4, 400, megabytes, rounds) for megabytes, rounds in ((0.01, 8), (0.1, 6), (1.0, 4))),
    *(Case(20, 100, megabytes, rounds) for megabytes, rounds in ((0.01, 16), (1.0, 6))),
    Case(8, 200, 0.3, 6, held_out=True),
)
QUICK: Final = (Case(2, 4, 0.01, 4),)


def measure(case: Case) -> dict[str, Any]:
    """Run a case, and return what a line has of it."""
    each = case.clients // case.agents
    clients = {f"board-{n}": f"{n * each}-{(n + 1) * each - 1}" for n in range(case.agents)}
    experiment = bench_experiment(case.agents, case.clients, case.megabytes, case.rounds, relay=True)
    with tempfile.TemporaryDirectory(prefix="fedquilt-site-") as made, ExitStack() as stack:
        folder = Path(made)
        tree = stack.enter_context(broker_tree(folder / "federation", {SITE: list(clients)}, [SITE], clients))
        file = folder / "experiment.yaml"
        file.write_text(dump_experiment(experiment))
        home = tree.federation.site_folder(SITE) / "relay" / "relay.yaml"
        relay = stack.enter_context(child("relay", "--config", str(home), "--state", str(folder / "relay")))
        for board in clients:
            config = str(tree.federation.board_folder(board) / "agent.yaml")
            stack.enter_context(child("agent", "--config", config, "--state", str(folder / board)))
        options = coordinator_options(tree.federation)
        run = folder / "run"
        coordinator = stack.enter_context(child("coordinator", str(file), "--out", str(run), "--no-page", *options))
        used = [processor_seconds(relay, run, coordinator, rounds) for rounds in (1, case.rounds)]
        peak = peak_bytes(PROC / str(relay.pid)) or 0
        seconds = [float(row["seconds"]) for row in rows_of(run)[1:]]
    return report(case, used[1] - used[0], seconds, peak)


def processor_seconds(
    relay: subprocess.Popen[bytes], run: Path, coordinator: subprocess.Popen[bytes], rounds: int
) -> float:
    """Return what the relay has used when some rounds have ended.

    Raises:
        RuntimeError: the rounds do not end.
    """
    until = time.monotonic() + LONGEST_SECONDS
    while len(rows_of(run)) < rounds:
        if coordinator.poll() or time.monotonic() > until:
            raise RuntimeError(f"the run ended, or stands still, after {len(rows_of(run))} rounds")
        time.sleep(LOOK_SECONDS)
    times = psutil.Process(relay.pid).cpu_times()
    return times.user + times.system


def rows_of(run: Path) -> list[Mapping[str, str]]:
    """Return the finished rounds of a run."""
    path = run / "rounds.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def report(case: Case, used: float, seconds: Sequence[float], peak: int) -> dict[str, Any]:
    """Return the line of a case whose relay has used some processor seconds since the first round."""
    rounds = case.rounds - 1
    return {
        **asdict(case), "rounds": rounds, "median_seconds": round(median(seconds), 4),
        "processor_seconds": {"relay": round(used / rounds, 5)}, "peak_bytes": peak,
    }  # fmt: skip


def main() -> None:
    """Measure each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure one small case, and only print it")
    options = parser.parse_args()
    end_on_signals()
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": "python benchmarks/site_relays.py",
        "commit": commit(), "machine": machine(),
    }  # fmt: skip
    cases = []
    for case in QUICK if options.quick else GRID:
        cases.append(measure(case))
        print(json.dumps(cases[-1]), flush=True)
    if not options.quick:
        append_result(HISTORY, {**head, "cases": cases})


if __name__ == "__main__":
    main()
