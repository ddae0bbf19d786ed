"""Measures rounds without training at several sizes and keeps the history in benchmarks/results/round.jsonl.

    python benchmarks/round.py            measure, print, append one line per case
    python benchmarks/round.py --dry-run  measure and print only

A line holds the command, the commit, the machine, the medians, and each role's processor time in all rounds and the
start, so that you can compare any two lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_watch import ProcessWatch
from provenance import commit, machine

HISTORY = Path(__file__).parent / "results" / "round.jsonl"


@dataclass(frozen=True)
class Case:
    """One measurement: agents, clients of all of them, model size in MB (10**6 bytes), rounds; with masks, or sums?"""

    agents: int
    clients: int
    megabytes: float
    rounds: int
    secure: bool = False
    relay: bool = False

    @property
    def arguments(self) -> list[str]:
        pairs = {"agents": self.agents, "clients": self.clients, "megabytes": self.megabytes, "rounds": self.rounds}
        return ["bench", "round", *(text for k, v in pairs.items() for text in (f"--{k}", str(v))),
                *["--secure"] * self.secure,
                *["--relay"] * self.relay, "--json"]  # fmt: skip


CASES = (Case(4, 4, 0.1, 11), Case(4, 4, 45, 7), Case(2, 4, 45, 5), Case(2, 40, 45, 3),
         Case(2, 10, 0.1, 7), Case(2, 10, 0.1, 7, secure=True), Case(2, 10, 45, 3), Case(2, 10, 45, 3, secure=True),
         Case(2, 40, 0.1, 5), Case(2, 40, 0.1, 5, secure=True),
         Case(4, 1000, 0.1, 6), Case(4, 4000, 0.01, 4), Case(4, 4000, 0.01, 4, relay=True))  # fmt: skip


def measure(case: Case, version: str) -> dict[str, Any]:
    """Run one case of the commit ``version`` and return its line."""
    command = [sys.executable, "-m", "fedquilt_common.cli", *case.arguments]
    before = machine()
    with ProcessWatch() as watch:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=watch.environment)
    used = watch.report()
    found = json.loads(done.stdout)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["fedquilt", *case.arguments]),
        "commit": version,
        "machine": before,
        "median": found["median"],
        "seconds": [round(row["seconds"], 3) for row in found["rounds"]],
        "processes": found["processes"],
        "processor_seconds": {role: use["processor_seconds"] for role, use in used["processes"].items()},
    }


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    dry = parser.parse_args().dry_run
    version = commit()
    for case in CASES:
        line = measure(case, version)
        shown = ("command", "median", "processes", "processor_seconds")
        print(json.dumps({key: line[key] for key in shown}, indent=2))
        if not dry:
            HISTORY.parent.mkdir(exist_ok=True)
            with HISTORY.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
