"""Measures many boards on one machine: their memory, and how soon `fedquilt simulate` works.

    python benchmarks/boards.py                 2, 20 and 100 agents: measure, print, append one line per case
    python benchmarks/boards.py --agents 20     another number
    python benchmarks/boards.py --dry-run       measure and print only

Each agent hosts one client of handwritten digits and trains it in a process of its own. The memory is the sum of the
proportional set sizes (PSS, from smaps_rollup) of all processes of the command after round 2, when each agent has its
training process: a page that n processes share counts 1/n for each of them. The times begin with the command. The
processor time is what all processes have taken until the first round has ended. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from provenance import append_result, commit, machine

from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.simulate.status_poll import StatusPoll
from fedquilt_server.status.snapshot import Snapshot

HISTORY = Path(__file__).parent / "results" / "boards.jsonl"
PATIENCE = 900.0
POLL_SECONDS = 0.05
EXPERIMENT = """
name: boards
seed: 7
rounds: 100000
data: {{set: digits, clients: {agents}}}
model: {{name: mlp}}
algorithm: {{name: fedavg}}
training: {{epochs: 1, batch: 16, lr: 0.05}}
fleet:
  - {{kind: board, agents: {agents}, clients: {agents}}}
"""


@dataclass
class Watch:
    """A running simulation, and when it has reached what, in seconds since the command."""

    process: psutil.Process
    folder: Path
    page: StatusPoll
    started: float

    def until(self, reached: Any) -> tuple[float, float]:
        """Wait until ``reached`` is true of a snapshot; returns the seconds and the processor seconds by then."""
        while True:
            snapshot = self.page.fetch()
            now = time.monotonic() - self.started
            if snapshot is not None and reached(snapshot):
                return round(now, 2), self.processor_seconds()
            if now > PATIENCE or not self.process.is_running():
                raise SystemExit(f"the simulation has not come so far in {now:.0f} s; see {self.folder}/logs")
            time.sleep(POLL_SECONDS)

    def family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def processor_seconds(self) -> float:
        total = 0.0
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return round(total, 1)

    def memory(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return the PSS in MB (10**6 bytes) by role, and the number of processes."""
        pids = json.loads((self.folder / "pids.json").read_text())
        roles = {self.process.pid: "command", pids["broker"]: "broker", pids["coordinator"]: "coordinator"}
        roles |= dict.fromkeys(pids["agents"].values(), "agents")
        roles |= dict.fromkeys(pids.get("fork_servers", {}).values(), "fork servers")
        memory, counts = Counter[str](), Counter[str]()
        for process in self.family():
            role = roles.get(process.pid, "workers")
            memory[role] += proportional_bytes(process.pid)
            counts[role] += 1
        in_mb = {role: round(count / 1e6, 1) for role, count in memory.items()}
        return {**in_mb, "all": round(sum(memory.values()) / 1e6, 1)}, dict(counts)


def proportional_bytes(pid: int) -> int:
    """Return a process's PSS."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def rounds_done(number: int) -> Any:
    """Return a check of a snapshot: whether this number of rounds is finished."""
    return lambda snapshot: len(snapshot.history) >= number


def opened(snapshot: Snapshot) -> bool:
    """Whether the first round is open."""
    return snapshot.round >= 1 and snapshot.phase != "waiting"


def measure(agents: int) -> dict[str, Any]:
    """Simulate ``agents`` agents until each has trained, and return what that took."""
    with tempfile.TemporaryDirectory(prefix="fedquilt-boards-") as folder:
        (Path(folder) / "boards.yaml").write_text(EXPERIMENT.format(agents=agents))
        port, run = free_port(), Path(folder) / "run"
        words = ["simulate", str(Path(folder) / "boards.yaml"), "--out", str(run), "--port", str(port)]
        started = time.monotonic()
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-m", "fedquilt_common.cli", *words]
        with StatusPoll(f"http://127.0.0.1:{port}/") as page:
            process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
            try:
                return observe(Watch(psutil.Process(process.pid), run, page, started))
            finally:
                process.send_signal(signal.SIGINT)
                process.wait()


def observe(watch: Watch) -> dict[str, Any]:
    """Return the times and the memory of a simulation."""
    first, _ = watch.until(opened)
    ready, processor = watch.until(rounds_done(1))
    watch.until(rounds_done(2))
    memory, processes = watch.memory()
    return {
        "first_round_seconds": first,
        "ready_seconds": ready,
        "processor_seconds": processor,
        "pss_mb": memory,
        "processes": processes,
    }


def measure_often(agents: int, times: int) -> dict[str, Any]:
    """Measure several times; returns the medians of the numbers, and the numbers of each time."""
    before = machine()
    each = [measure(agents) for _ in range(times)]
    keys = ("first_round_seconds", "ready_seconds", "processor_seconds")
    middle = {key: median(one[key] for one in each) for key in keys}
    return {
        "agents": agents,
        "machine": before,
        "median": {**middle, "pss_mb": median(one["pss_mb"]["all"] for one in each)},
        "each": each,
    }


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=[2, 20, 100], help="numbers of agents")
    parser.add_argument("--times", type=int, default=3, help="measurements of each number")
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    options = parser.parse_args()
    version = commit()
    for agents in options.agents:
        command = f"python benchmarks/boards.py --agents {agents} --times {options.times}"
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": at, "command": command, "commit": version, **measure_often(agents, options.times)}
        print(json.dumps(line, indent=2))
        if not options.dry_run:
            append_result(HISTORY, line)


if __name__ == "__main__":
    main()
