"""Measures rounds on boards whose cards sync slowly, and keeps the history in benchmarks/results/slow_card.jsonl.

    python benchmarks/slow_card.py            cards that take 0, 20 and 100 ms for a sync: print, append
    python benchmarks/slow_card.py --dry-run  measure and print only

Each sync of an agent or a training process is delayed; those of the coordinator, on a workstation, are not.
The clients train nothing and have no private memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

HISTORY = Path(__file__).parent / "results" / "slow_card.jsonl"
DELAYS = (0, 20, 100)
ARGUMENTS = ("bench", "round", "--agents", "4", "--clients", "200", "--megabytes", "0.1", "--rounds", "4", "--json")
SLOW_SYNC = """import os, sys, time

if "agent" in sys.orig_argv or "fedquilt_client.worker" in sys.orig_argv:
    def slow(sync):
        def wait(descriptor):
            time.sleep({seconds})
            return sync(descriptor)
        return wait

    os.fsync, os.fdatasync = slow(os.fsync), slow(os.fdatasync)
"""
"""Python runs a module named ``sitecustomize`` at the start of each process."""


def measure(milliseconds: int) -> dict[str, Any]:
    """Run the rounds with this delay of each sync."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(SLOW_SYNC.format(seconds=milliseconds / 1000))
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "fedquilt_common.cli", *ARGUMENTS]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
    found = json.loads(done.stdout)
    seconds = [round(row["seconds"], 3) for row in found["rounds"]]
    return {"sync_milliseconds": milliseconds, "median": found["median"], "seconds": seconds}


def main() -> None:
    """Measure every card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    options = parser.parse_args()
    version = commit()
    for milliseconds in DELAYS:
        origin = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": "fedquilt " + " ".join(ARGUMENTS),
            "commit": version,
            "machine": machine(),
        }
        line = {**origin, **measure(milliseconds)}
        print(json.dumps({key: line[key] for key in ("sync_milliseconds", "seconds")}))
        if not options.dry_run:
            append_result(HISTORY, line)


if __name__ == "__main__":
    main()
