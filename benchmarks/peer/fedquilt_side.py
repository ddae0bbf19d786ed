"""fedquilt's side: ``fedquilt bench round`` and ``fedquilt simulate``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from process_watch import ProcessWatch

EXPERIMENT = Path(__file__).parent / "simulation.yaml"


def deployment(megabytes: float, agents: int, rounds: int, clients: int | None = None) -> dict[str, Any]:
    """Measure rounds without training, of ``clients`` clients of all agents together; None: one for each agent."""
    sizes = {"agents": agents, "clients": clients or agents, "megabytes": f"{megabytes:g}", "rounds": rounds}
    return run_command(["bench", "round", *(f"--{key}={value}" for key, value in sizes.items()), "--json"])


def simulation(rounds: int, seed: int) -> dict[str, Any]:
    """Measure the simulation; its accuracy is that after the last round."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = ["--set", f"rounds={rounds}", "--set", f"seed={seed}"]
        measured = run_command(["simulate", str(EXPERIMENT), *settings, "--out", str(out), "--json"])
    measured["command"] = measured["command"].replace(str(out), "RUN").replace(str(EXPERIMENT), EXPERIMENT.name)
    return measured


def run_command(arguments: list[str]) -> dict[str, Any]:
    """Run a fedquilt command that prints rounds as JSON, and return what a result's line has of it.

    Raises:
        RuntimeError: the command failed.
    """
    start = time.monotonic()
    with ProcessWatch() as watch:
        command = [sys.executable, "-m", "fedquilt_common.cli", *arguments]
        done = subprocess.run(command, env=watch.environment, capture_output=True, text=True, check=False)
        total = time.monotonic() - start
    if done.returncode:
        raise RuntimeError(f"fedquilt {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    rounds = json.loads(done.stdout)["rounds"]
    return {
        "seconds": [round(row["seconds"], 4) for row in rounds],
        "accuracy": rounds[-1].get("accuracy"),
        **{name: median(row[name] for row in rounds) for name in ("bytes_down", "bytes_up")},
        "total_seconds": round(total, 2),
        "command": " ".join(["fedquilt", *arguments]),
        **watch.report(),
    }
