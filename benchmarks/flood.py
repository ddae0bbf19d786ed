"""Measures what a flooding client costs a federation, and keeps the history in benchmarks/results/flood.jsonl.

    python benchmarks/flood.py                      measure every case, print, append one line per case
    python benchmarks/flood.py replies/0 names/1    measure only these kinds, each with its QoS
    python benchmarks/flood.py --dry-run            measure and print only

Four agents run rounds without training over a real Mosquitto. Each case has a federation of its own and four windows:
``quiet``; ``base``, with the same flood in a federation to which nobody subscribes; ``flooded``, from the flood's first
message on; and ``after``. On a small machine the flooder also takes processor time from everybody, so ``base`` is the
fair comparison: it has the same flooder and the same work for the broker. The windows follow one another, so other work
on the machine falls on one of them: use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from provenance import append_result, commit, machine

from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening
from fedquilt_server.simulate.plan import SimulationPlan, make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.tools.bench import bench_experiment

HISTORY = Path(__file__).parent / "results" / "flood.jsonl"
FLOODER = Path(__file__).parent / "flooder.py"
KINDS = ("replies", "telemetry", "presence", "names", "large")
CASES = tuple(f"{kind}/{qos}" for qos in (0, 1) for kind in KINDS)
WARM_ROUNDS = 20
NOBODY = "nobody"
"""A federation without a coordinator."""


@dataclass(frozen=True)
class Window:
    """Rounds per second, the longest pause between two rounds in seconds, and the highest memory in bytes."""

    rate: float
    pause: float
    peak: dict[str, int]


@dataclass
class Watch:
    """Follows a run from outside: the rounds that are done, and the memory of its coordinator and broker."""

    plan: SimulationPlan
    broker: int
    rounds: int = 0
    agents: int = 0

    def show(self, snapshot: Snapshot) -> None:
        """Take a snapshot of the run."""
        self.rounds, self.agents = len(snapshot.history), len(snapshot.boards)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of coordinator and broker now."""
        pids = json.loads((self.plan.folder / "pids.json").read_text())
        return {
            "coordinator": psutil.Process(pids["coordinator"]).memory_info().rss,
            "broker": psutil.Process(self.broker).memory_info().rss,
        }

    def window(self, seconds: float) -> Window:
        """Watch for some seconds."""
        first = last = self.rounds
        peak, longest, started = self.memory(), 0.0, time.monotonic()
        moved = started
        while (now := time.monotonic()) - started < seconds:
            if self.rounds != last:
                last, longest, moved = self.rounds, max(longest, now - moved), now
            peak = {name: max(size, peak[name]) for name, size in self.memory().items()}
            time.sleep(0.1)
        longest = max(longest, now - moved)
        return Window((self.rounds - first) / (now - started), longest, peak)


def measure(case: str, seconds: float) -> dict[str, Any]:
    """Run one case, such as ``replies/1``; each window takes ``seconds``."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fedquilt-flood-") as name:
        folder = Path(name)
        with subprocess.Popen(broker_command(folder / "broker", port), stderr=subprocess.DEVNULL) as broker:
            try:
                wait_listening("127.0.0.1", port, 10)
                experiment = bench_experiment(4, 4, 0.1, 1_000_000)
                plan = make_plan(experiment, folder / "run", f"mqtt://127.0.0.1:{port}")
                return _measure_run(Watch(plan, broker.pid), port, case, seconds)
            finally:
                broker.terminate()


def _measure_run(watch: Watch, port: int, case: str, seconds: float) -> dict[str, Any]:
    ended = threading.Event()
    run = threading.Thread(target=run_simulation, args=(watch.plan, watch.show, ended.is_set))
    run.start()
    try:
        while watch.rounds < WARM_ROUNDS:
            time.sleep(0.1)
        windows, before = {"quiet": watch.window(seconds)}, watch.memory()
        windows["base"], _ = _flood(watch, port, NOBODY, case, seconds)
        windows["flooded"], messages = _flood(watch, port, watch.plan.federation, case, seconds)
        windows["after"] = watch.window(seconds)
        return {
            "rounds_per_second": {name: round(window.rate, 2) for name, window in windows.items()},
            "longest_pause": {name: round(window.pause, 1) for name, window in windows.items()},
            "messages_per_second": round(messages / seconds),
            "memory": {"before": before, "peak": windows["flooded"].peak, "after": watch.memory()},
            "agents": watch.agents,
            "journal_bytes": (watch.plan.folder / "journal.sqlite").stat().st_size,
        }
    finally:
        ended.set()
        run.join()


def _flood(watch: Watch, port: int, federation: str, case: str, seconds: float) -> tuple[Window, int]:
    """Watch a flood of a federation; returns the window and the number of messages."""
    command = [sys.executable, str(FLOODER), str(port), federation, *case.split("/")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooder:
        window = watch.window(seconds)
        flooder.terminate()
        return window, int(flooder.communicate()[0])


def main() -> None:
    """Measure the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a window (default: 60)")
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    options = parser.parse_args()
    version = commit()
    for case in options.cases or CASES:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": f"python benchmarks/flood.py --seconds {options.seconds:g} {case}",
            "commit": version,
            "machine": machine(),
            **measure(case, options.seconds),
        }
        print(json.dumps({key: value for key, value in line.items() if key not in ("at", "machine")}))
        if not options.dry_run:
            append_result(HISTORY, line)


if __name__ == "__main__":
    main()
