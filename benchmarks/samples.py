"""Measures what a client's samples cost a training process, and keeps the history in benchmarks/results/samples.jsonl.

    FEDQUILT_DATA=... python benchmarks/samples.py            one of 20 clients of CIFAR-10: print, append
    FEDQUILT_DATA=... python benchmarks/samples.py --dry-run  measure and print only

Each case is a process of its own that has loaded torch. ``first`` fills an empty cache of prepared data sets; ``again``
finds it filled; ``delivered`` has the client's samples as a file, without the data set. ``seconds`` is the time until
the first batch of 32 samples is read; ``megabytes`` is the growth of the resident memory after an epoch of batches, and
``peak_megabytes`` its largest growth. Linux only.
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
from statistics import median
from typing import Any

from provenance import append_result, commit, machine

HISTORY = Path(__file__).parent / "results" / "samples.jsonl"
CLIENT, BATCH = 3, 32
EXPERIMENT = {
    "name": "samples", "seed": 1, "rounds": 1, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"},
    "data": {"set": "cifar10", "clients": 20, "partition": {"scheme": "dirichlet", "alpha": 0.5}},
    "participation": {"per_round": 20, "quorum": 20},
}  # fmt: skip


def read_status(key: str) -> float:
    """Return a line of the process' status in megabytes: ``VmRSS`` or ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024 / 1e6


def run_case(shard: str | None) -> None:
    """Load the client's samples as a training process does, read all batches, and print the measurements."""
    import numpy as np
    import torch  # noqa: F401 - a training process has loaded it

    from fedquilt_common.datasets.shard_files import DatasetForm, read_shard
    from fedquilt_common.experiment.experiment import Experiment
    from fedquilt_common.experiment_tools import ExperimentTools

    experiment = Experiment.model_validate_json(json.dumps(EXPERIMENT))
    Path("/proc/self/clear_refs").write_text("5")
    before, started = read_status("VmRSS"), time.perf_counter()
    if shard is None:
        samples = ExperimentTools(experiment, ()).training_samples(CLIENT)
    else:
        samples = read_shard(Path(shard), DatasetForm("cifar10", (3, 32, 32), "float32", 10)).train
    order = np.random.default_rng(0).permutation(len(samples))
    _ = samples.x[order[:BATCH]]
    seconds = time.perf_counter() - started
    for start in range(0, len(order), BATCH):
        _ = samples.x[order[start : start + BATCH]]
    found = {
        "seconds": seconds, "megabytes": read_status("VmRSS") - before,
        "peak_megabytes": read_status("VmHWM") - before,
    }  # fmt: skip
    print(json.dumps(found))


def measure(cache: Path, shard: str | None = None) -> dict[str, float]:
    """Measure one case in a process of its own."""
    command = [sys.executable, __file__, "--case", *([shard] if shard else [])]
    done = subprocess.run(
        command, env={**os.environ, "FEDQUILT_CACHE": str(cache)}, capture_output=True, text=True, check=True
    )
    return {key: round(value, 3) for key, value in json.loads(done.stdout).items()}


def measure_all(repeats: int) -> dict[str, Any]:
    """Measure the three cases; the median of ``repeats`` where nothing has to be prepared."""
    from fedquilt_common.datasets.shard_files import write_shard
    from fedquilt_common.experiment.experiment import Experiment
    from fedquilt_common.experiment_tools import ExperimentTools

    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        first = measure(cache)
        os.environ["FEDQUILT_CACHE"] = str(cache)
        tools = ExperimentTools(Experiment.model_validate_json(json.dumps(EXPERIMENT)), ())
        shard = write_shard(Path(folder) / "shard.safetensors", tools.shard(CLIENT))
        cases = {"again": None, "delivered": str(shard.path)}
        many = {name: [measure(cache, path) for _ in range(repeats)] for name, path in cases.items()}
    medians = {name: {key: median(one[key] for one in found) for key in found[0]} for name, found in many.items()}
    return {"first": first, **medians, "shard_bytes": shard.size}


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", nargs="?", const="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        run_case(options.case or None)
        return
    line = {"commit": commit(), "machine": machine(), **measure_all(options.repeats)}
    print(json.dumps(line, indent=1))
    if not options.dry_run:
        append_result(HISTORY, line)


if __name__ == "__main__":
    main()
