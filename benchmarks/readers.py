"""Measures what open pages cost a run, and keeps the history in benchmarks/results/readers.jsonl.

    python benchmarks/readers.py            measure, print, append one line
    python benchmarks/readers.py --dry-run  measure and print only

A coordinator with its page, a Mosquitto and four agents on links of 200 kB/s run rounds without training, while 200
further boards send telemetry once a second. Short windows without readers alternate with windows in which 10 pages are
open, one of them on a slow link. Other work on the machine changes slowly, so each window is compared with its
neighbours. The line holds the mean round time of each window, the changes, and the resident memory of the coordinator
during a last, longer window. The readers take processor time, too; a reader of a real page is another machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import psutil
from provenance import append_result, commit, machine

from fedquilt_common.experiment.experiment import Experiment, agent_specs, dump_experiment
from fedquilt_common.experiment.sections import LinkSpec
from fedquilt_server.runs.journal import Journal, copy_journal
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening
from fedquilt_server.tools.bench import bench_experiment

HISTORY = Path(__file__).parent / "results" / "readers.jsonl"
CROWD = Path(__file__).parent / "crowd.py"
FEDERATION = "readers"
BOARDS, PAGES = 200, 10
MEGABYTES = 0.1
"""Size of the model."""
SETTLE_SECONDS = 0.5
"""Time after a change that belongs to no window."""


@dataclass(frozen=True)
class Window:
    """A span of time and its mark: whether pages were open."""

    begin: float
    end: float
    read: bool
    cpu: float


@contextmanager
def child(*command: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def fedquilt(*arguments: str) -> tuple[str, ...]:
    """Return the command line of a fedquilt command."""
    return (sys.executable, "-m", "fedquilt_common.cli", *arguments)


@dataclass(frozen=True)
class Stage:
    """A run that goes on: its folder, its coordinator, and the readers of its page."""

    folder: Path
    coordinator: psutil.Process
    readers: subprocess.Popen[str]

    def window(self, seconds: float, *, read: bool) -> Window:
        """Let the run go on for some seconds."""
        time.sleep(SETTLE_SECONDS)
        begin, before = time.time(), self._cpu()
        time.sleep(seconds)
        end = time.time()
        return Window(begin, end, read, (self._cpu() - before) / (end - begin))

    def switch(self) -> list[int]:
        """Open the pages, or close them; returns the bytes that those that were open have received."""
        assert self.readers.stdin  # noqa: S101 - both are pipes
        assert self.readers.stdout  # noqa: S101
        self.readers.stdin.write("switch\n")
        self.readers.stdin.flush()
        received: list[int] = json.loads(self.readers.stdout.readline())
        return received

    def windows(self, pairs: int, seconds: float) -> Iterator[Window]:
        """Yield windows without and with open pages, in turn."""
        for number in range(2 * pairs):
            yield self.window(seconds, read=number % 2 == 1)
            self.switch()

    def _cpu(self) -> float:
        times = self.coordinator.cpu_times()
        return float(times.user + times.system)

    def memory(self, seconds: float) -> dict[str, Any]:
        """Return the coordinator's resident megabytes every 5 s while pages are open, and what they received."""
        self.switch()
        sizes = []
        for _ in range(int(seconds / 5) + 1):
            time.sleep(5)
            sizes.append(round(self.coordinator.memory_info().rss / 1e6, 1))
        return {"megabytes": sizes, "received_bytes": self.switch()}

    def round_seconds(self) -> list[tuple[float, float]]:
        """Return the end and the seconds of each finished round."""
        copy = self.folder / "copy.sqlite"
        copy_journal(self.folder / "journal.sqlite", copy)
        journal = Journal(copy)
        rows = [(one.at, one.result.seconds) for one in journal.checkpoints() if one.result]
        journal.close()
        return rows


@contextmanager
def running(experiment: Experiment, folder: Path) -> Iterator[Stage]:
    """Start broker, coordinator, agents and the crowd of boards."""
    port, page = free_port(), free_port()
    broker = ("--broker", f"mqtt://127.0.0.1:{port}", "--federation", FEDERATION)
    file = folder / "experiment.yaml"
    file.write_text(dump_experiment(experiment))
    with ExitStack() as opened:

        def start(name: str, *command: str) -> subprocess.Popen[str]:
            return opened.enter_context(child(*command, log=folder / f"{name}.log"))

        start("broker", *broker_command(folder / "broker", port))
        wait_listening("127.0.0.1", port, 10)
        options = ("--out", str(folder), "--port", str(page))
        coordinator = start("coordinator", *fedquilt("coordinator", str(file), *broker, *options))
        for spec in agent_specs(experiment.fleet, experiment.speedup):
            clients = f"{spec.clients[0]}-{spec.clients[-1]}"
            state = str(folder / "agents" / spec.name)
            own = ("--id", spec.name, "--clients", clients, "--state", state, "--link", spec.options["link"])
            start(spec.name, *fedquilt("agent", *broker, *own))
        crowd = start("crowd", sys.executable, str(CROWD), "boards", str(port), FEDERATION, str(BOARDS))
        assert crowd.stdout  # noqa: S101 - it is a pipe
        crowd.stdout.readline()  # all of them have joined
        readers = start("readers", sys.executable, str(CROWD), "readers", f"http://127.0.0.1:{page}/", str(PAGES))
        yield Stage(folder, psutil.Process(coordinator.pid), readers)


def linked_experiment(rate: float) -> Experiment:
    """Return rounds of four agents without training, whose links carry ``rate`` bytes a second in each direction."""
    plain = bench_experiment(4, 4, MEGABYTES, 1_000_000)
    lines = tuple(line.model_copy(update={"link": LinkSpec(rate=rate)}) for line in plain.fleet)
    return plain.model_copy(update={"fleet": lines})


def measure(rate: float, pairs: int, seconds: float) -> dict[str, Any]:
    """Measure windows with and without readers in turn, then the memory."""
    with tempfile.TemporaryDirectory(prefix="fedquilt-readers-") as name:
        folder = Path(name)
        with running(linked_experiment(rate), folder) as stage:
            windows = list(stage.windows(pairs, seconds))
            memory = stage.memory(60)
            rounds = stage.round_seconds()
    return {**summarise(windows, rounds), "memory": memory}


def summarise(windows: list[Window], rounds: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the round times of the windows, and how much they change with readers."""
    times = [mean(seconds for at, seconds in rounds if w.begin + seconds <= at <= w.end) for w in windows]
    changes = [
        100 * ((two / one if windows[i].read < windows[i + 1].read else one / two) - 1)
        for i, (one, two) in enumerate(itertools.pairwise(times))
        if windows[i].read != windows[i + 1].read
    ]
    return {
        "rounds": len(rounds),
        "without": _side(windows, times, read=False),
        "with": _side(windows, times, read=True),
        "change_percent": {
            "median": round(median(changes), 2),
            "quartiles": [round(one, 2) for one in quantiles(changes, n=4)],
            "mean": round(mean(changes), 2),
            "neighbours": [round(one, 1) for one in changes],
        },
    }


def _side(windows: list[Window], times: list[float], *, read: bool) -> dict[str, Any]:
    """Return the seconds of a round, and the share of a processor that the coordinator takes."""
    seconds = [round(time, 4) for window, time in zip(windows, times, strict=True) if window.read == read]
    cpu = median(window.cpu for window in windows if window.read == read)
    return {"median": median(seconds), "windows": seconds, "coordinator_cpu": round(cpu, 3)}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    parser.add_argument("--pairs", type=int, default=12, help="windows of each kind (default: 12)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window (default: 8)")
    parser.add_argument("--rate", type=float, default=2e5, help="bytes a second of a board's link (default: 200,000)")
    options = parser.parse_args()
    line = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"python benchmarks/readers.py --pairs {options.pairs} --seconds {options.seconds:g}"
        f" --rate {options.rate:g}",
        "commit": commit(),
        "machine": machine(),
        **measure(options.rate, options.pairs, options.seconds),
        "load_after": round(psutil.getloadavg()[0], 2),
    }
    print(json.dumps(line, indent=2))
    if not options.dry_run:
        append_result(HISTORY, line)


if __name__ == "__main__":
    main()
