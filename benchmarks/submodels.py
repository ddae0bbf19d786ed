"""AdaptiveFL's Table 2 on one machine: seven ways to train one model on boards of three kinds, on Fashion-MNIST.

    python benchmarks/submodels.py [--rounds 30] [--seeds 1 2 3] [--only fedrolex adaptivefl]

Each line of ``results/submodels.jsonl`` is one run: "full" is the whole model's accuracy, "avg" the mean over the
three levels' sub-models, bytes are those of the coordinator's socket, waste is 1 - sent back / sent (AdaptiveFL,
section 4.4).
``--table`` prints the stored results. The data set must lie below FEDQUILT_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from provenance import commit, machine

RESULTS = Path(__file__).parent / "results" / "submodels.jsonl"
WIDTHS = {"strong": 1.0, "medium": 0.66, "weak": 0.4}
CONVNET = {"name": "convnet"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "all-large": {},
    "decoupled": {"widths": WIDTHS},
    "heterofl": {"widths": WIDTHS},
    "scalefl": {"widths": WIDTHS, "exits": {"strong": 3, "medium": 2, "weak": 1}},
    "federated-dropout": {"widths": WIDTHS},
    "fedrolex": {"widths": WIDTHS},
    "adaptivefl": {"levels": {"M": 0.66, "S": 0.4}, "starts": [2, 1]},
}
FLEET = [
    {"kind": "strong", "agents": 1, "clients": 6},
    {"kind": "medium", "agents": 1, "clients": 6, "budget": "39.5MiB"},
    {"kind": "weak", "agents": 1, "clients": 8, "budget": "36MiB"},
]
"""The budgets let a medium board train M1 and what is smaller, a weak one S2 (``fedquilt model inspect convnet``)."""
COLUMNS = {"avg": 100, "full": 100, "bytes_down": 1e-6, "bytes_up": 1e-6, "waste": 100}
"""The columns of the table, and the factor of each."""


def experiment(name: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return AdaptiveFL's training preset, with one epoch a round and a learning rate of 0.05 instead of 5 and 0.01."""
    model = {**CONVNET, "exits": [1, 2]} if name == "scalefl" else CONVNET
    return {
        "name": f"fmnist-{name}", "seed": seed, "rounds": rounds, "evaluate_every": max(1, rounds // 3),
        "data": {"set": "fashion-mnist", "clients": 20, "partition": {"scheme": "dirichlet", "alpha": 0.3}},
        "model": model, "algorithm": {"name": name, **ALGORITHMS[name]},
        "participation": {"per_round": 5, "quorum": 5, "deadline": 600},
        "training": {"epochs": 1, "batch": 50, "lr": 0.05, "lr_decay": 0.998, "momentum": 0.5, "weight_decay": 1e-4,
                     "drop_last": True},
        "fleet": FLEET,
    }  # fmt: skip


def run(name: str, seed: int, rounds: int) -> dict[str, Any]:
    """Run an experiment once; returns its row."""
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(yaml.safe_dump(experiment(name, seed, rounds)))
        words = ["simulate", str(path), "--out", f"{folder}/run", "--json"]
        command = [sys.executable, "-m", "fedquilt_common.cli", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads((Path(folder) / "run" / "result.json").read_text())
    final, results = result["final"], result["rounds"]
    waste = [row["waste_rate"] for row in results if row["waste_rate"] is not None]
    return {
        "algorithm": name, "seed": seed, "rounds": rounds, "full": final["accuracy"],
        "avg": final.get("average_accuracy"), "bytes_down": final["bytes_down"], "bytes_up": final["bytes_up"],
        "waste": statistics.mean(waste) if waste else None, "seconds": round(time.time() - started, 1),
        "evaluated": [[row["round"], row["accuracy"]] for row in results if row["accuracy"] is not None],
    }  # fmt: skip


def print_table() -> None:
    """Print the means over the seeds of the stored results."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    print("| algorithm | seeds | rounds | avg | full | MB down | MB up | waste |\n|---|---|---|---|---|---|---|---|")
    for name in ALGORITHMS:
        runs = [row for row in rows if row["algorithm"] == name]
        if runs:
            cells = [_mean(runs, key, scale) for key, scale in COLUMNS.items()]
            print(f"| {name} | {len(runs)} | {runs[0]['rounds']} | {' | '.join(cells)} |")


def _mean(rows: list[dict[str, Any]], key: str, scale: float) -> str:
    values = [scale * row[key] for row in rows if row[key] is not None]
    return f"{statistics.mean(values):.2f}" if values else "-"


def main() -> None:
    """Run the chosen experiments, append their rows to the results, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    version = commit()
    for seed in [] if given.table else given.seeds:
        for name in given.only:
            row = {"commit": version, "machine": machine(), **run(name, seed, given.rounds)}
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row))
    print_table()


if __name__ == "__main__":
    main()
