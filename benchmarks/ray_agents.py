"""Measures many agents with tiny models on a Ray cluster of two nodes; history in benchmarks/results/ray_agents.jsonl.

    python benchmarks/ray_agents.py               200 agents; measure, print, append one line
    python benchmarks/ray_agents.py --agents 20 --dry-run

Both nodes are on this machine. One is killed after the first round, so its agents start on the other one. Then the same
experiment runs without Ray, and the two models are compared to the bit. Memory is the sum of the proportional set sizes
of all processes of the run and of the cluster, at its highest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from provenance import append_result, commit, machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.ray_nodes import RayNodes, ray_nodes

from fedquilt_server.status.placement import PlacementRecord

HISTORY: Final = Path(__file__).parent / "results" / "ray_agents.jsonl"
LONGEST_SECONDS: Final = 1500
SAMPLE_SECONDS: Final = 10.0
SAMPLES_PER_CLIENT: Final = 5


def main() -> None:
    """Measure once with a node that dies, and once without Ray."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"python benchmarks/ray_agents.py --agents {options.agents} --rounds {options.rounds}",
        "commit": commit(),
        "machine": machine(),
        "agents": options.agents,
    }
    with tempfile.TemporaryDirectory(prefix="fedquilt-ray-bench-") as made:
        folder = Path(made)
        experiment = folder / "tiny.yaml"
        experiment.write_text(yaml.safe_dump(tiny_experiment(options.agents, options.rounds)))
        with ray_nodes() as cluster:
            row = measure_cluster(cluster, experiment, folder / "ray")
        run(experiment, folder / "plain")
        row["same_bits"] = digest(folder / "ray") == digest(folder / "plain")
    print(json.dumps(row, indent=2))
    if not options.dry_run:
        append_result(HISTORY, {**head, **row})


def tiny_experiment(agents: int, rounds: int) -> dict[str, Any]:
    """Return an experiment of handwritten digits: one client with few samples on each agent, 650 parameters."""
    return {
        "name": "tiny", "seed": 1, "rounds": rounds,
        "data": {"set": "digits", "clients": agents, "partition": {"scheme": "uniform"}},
        "model": {"name": "mlp", "hidden": []},
        "algorithm": {"name": "fedavg"},
        "participation": {"per_round": agents, "quorum": agents, "deadline": 900},
        "training": {"epochs": 1, "batch": SAMPLES_PER_CLIENT, "lr": 0.1},
        "fleet": [{"kind": "tiny", "agents": agents, "clients": agents}],
    }  # fmt: skip


def measure_cluster(cluster: RayNodes, experiment: Path, out: Path) -> dict[str, Any]:
    """Run on both nodes, kill the second after the first round, and return the times in seconds."""
    second = cluster.add(num_cpus=2)
    begin, peak = time.monotonic(), [0]
    with start(experiment, out, "--ray", cluster.address) as process:
        threading.Thread(target=watch_memory, args=(process, peak), daemon=True).start()
        first = after_round(process, 1)
        spread = sorted(Counter(one.node for one in placements(out).placements).values())
        killed = time.monotonic()
        cluster.kill(second)
        after_round(process, 2)
        back = time.monotonic()
        for _ in process.stderr or ():
            pass
        if process.wait(LONGEST_SECONDS):
            raise SystemExit(f"simulate ended with exit code {process.returncode}; see {out}/logs")
        done = time.monotonic()
    moved = sum(one.moves for one in placements(out).placements)
    seconds = [row["seconds"] for row in json.loads((out / "result.json").read_text())["rounds"]]
    return {
        "agents_of_nodes": spread, "first_round_seconds": round(first - begin, 1), "moved": moved,
        "round_with_death_seconds": round(back - killed, 1), "seconds": round(done - begin, 1),
        "rounds": seconds, "memory_gb": round(peak[0] / 1e9, 2),
    }  # fmt: skip


def after_round(process: subprocess.Popen[str], number: int) -> float:
    """Return the time at which the command reports a round."""
    for line in process.stderr or ():
        print(line, end="", file=sys.stderr)
        if re.match(rf"round {number}/", line):
            return time.monotonic()
    raise SystemExit(f"simulate ended before round {number}")


def placements(out: Path) -> PlacementRecord:
    """Return where the agents are."""
    return PlacementRecord.model_validate_json((out / "placement.json").read_bytes())


def watch_memory(process: subprocess.Popen[str], peak: list[int]) -> None:
    """Raise ``peak`` to the memory of all processes of the run and of Ray, until the command ends."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_memory, psutil.Process().children(recursive=True))))
        time.sleep(SAMPLE_SECONDS)


def _memory(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def start(experiment: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """Start a simulation."""
    command = [sys.executable, "-m", "fedquilt_common.cli", "simulate", str(experiment), "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run(experiment: Path, out: Path) -> None:
    """Run a simulation without Ray to its end."""
    with start(experiment, out) as process:
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
    if process.returncode:
        raise SystemExit(errors)


def digest(out: Path) -> str:
    """Return the digest of the model of a run."""
    return hashlib.sha256((out / "global.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
