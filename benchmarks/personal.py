"""Tables 5.5 and 5.6 of the FedReb thesis: G and P of nine algorithms, 5 of 20 clients a round, Dirichlet 0.1.

    python benchmarks/personal.py [--data fashion-mnist cifar10] [--only fedavg fedreb] [--seeds 1] [--rounds 100]

G is the best accuracy over the rounds of the global model on the union of the clients' test samples, P the best pooled
accuracy of the clients' own models, after each round's aggregation, as in the thesis. Each line of
``results/personal.jsonl`` is one run. Two runs go at a time, each with one training process, so that they use both
cores of a small machine. ``training_share`` is the part of the processor time of coordinator, broker, agent and worker
in which clients trained; evaluation is not training. It compares seconds of training with seconds of processor, so it
is right only on a machine that does nothing else. ``--work FOLDER`` keeps the run folders there, and the same command
resumes a stopped run; such runs have no ``training_share``. ``--table`` prints the stored results. The data sets must
lie below FEDQUILT_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import yaml
from provenance import commit, machine

RESULTS = Path(__file__).parent / "results" / "personal.jsonl"
MEASURED = {"global_head": "mean"}
"""The thesis averages whole models, private heads included, to measure the global accuracy of these."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.001},
    "feddyn": {"alpha": 0.01},
    "ditto": {"lambda": 0.1, "personal_epochs": 5},
    "fedper": {**MEASURED},
    "fedrep": {"head_epochs": 5, "body_epochs": 1, **MEASURED},
    "fedbabu": {"tune_epochs": 10},
    "fedrod": {},
    "fedreb": {"head_layers": 2, "threshold": "mean"},
}
"""With the thesis's hyper-parameters; it does not give Ditto's lambda, and 0.1 is that paper's own for images."""
THESIS = {
    "fashion-mnist": {
        "fedavg": (83.08, 83.08), "fedprox": (83.91, 83.91), "feddyn": (85.03, 85.03), "ditto": (84.20, 97.81),
        "fedper": (72.66, 98.30), "fedrep": (58.24, 98.13), "fedbabu": (71.27, 97.84), "fedrod": (86.17, 98.14),
        "fedreb": (87.29, 98.07),
    },
    "cifar10": {"fedavg": (54.92, 54.92), "fedrod": (59.14, 89.62), "fedreb": (60.40, 90.25)},
}  # fmt: skip
"""Published G and P in per cent, the means of five runs."""


def experiment(name: str, data: str, seed: int, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of the thesis's section 5.3, with ``changes`` to the algorithm's fields."""
    partition = {"scheme": "dirichlet-per-class", "alpha": 0.1, "min_samples": 40}
    return {
        "name": f"{data}-{name}", "seed": seed, "rounds": rounds,
        "data": {"set": data, "clients": 20, "partition": partition, "holdout": 0.25, "mixed": True},
        "model": {"name": "convnet"}, "algorithm": {"name": name, **ALGORITHMS[name], **changes},
        "participation": {"per_round": 5, "quorum": 5, "deadline": 3600},
        "training": {"epochs": 5, "batch": 20, "lr": 0.01, "momentum": 0.9},
        "fleet": [{"kind": "board", "agents": 1, "clients": 20}],
    }  # fmt: skip


def run(name: str, data: str, seed: int, rounds: int, changes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run or resume an experiment in ``folder``; returns its row."""
    path, result_file = folder / "experiment.yaml", folder / "run" / "result.json"
    begun = result_file.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(experiment(name, data, seed, rounds, changes)))
    words = ["simulate", str(path), "--out", str(folder / "run"), "--json"]
    processor_seconds = _run([sys.executable, "-m", "fedquilt_common.cli", *words])
    result = json.loads(result_file.read_text())
    final, results = result["final"], result["rounds"]
    seconds, training = final["seconds"], sum(row["train_seconds"] for row in results)
    return {
        "algorithm": name, "data": data, "seed": seed, "rounds": rounds, "changes": changes,
        **{key: final[key] for key in ("best_global_accuracy", "best_personal_accuracy")},
        **{key: final[key] for key in ("global_accuracy", "personal_accuracy", "bytes_down", "bytes_up")},
        "seconds": round(seconds, 1), "rounds_per_second": round(rounds / seconds, 4),
        "training_share": None if begun else round(training / processor_seconds, 3),
        "g": [round(row["global_accuracy"], 4) for row in results],
        "p": [round(row["personal_accuracy"], 4) for row in results],
    }  # fmt: skip


def _run(command: list[str]) -> float:
    """Run a command; returns the seconds of processor time that it and its child processes used."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def print_table(data: str) -> None:
    """Print the means over the seeds of the stored results beside the thesis's numbers."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    print(f"\n{data}\n| algorithm | seeds | rounds | G | thesis | P | thesis | rounds/s |\n{'|---' * 8}|")
    for name, (g, p) in THESIS[data].items():
        runs = [row for row in rows if (row["algorithm"], row["data"], row["changes"]) == (name, data, {})]
        if runs:
            means = [100 * _mean(runs, key) for key in ("best_global_accuracy", "best_personal_accuracy")]
            cells = [len(runs), runs[0]["rounds"], f"{means[0]:.2f}", f"{g:.2f}", f"{means[1]:.2f}", f"{p:.2f}",
                     f"{_mean(runs, 'rounds_per_second'):.3f}"]  # fmt: skip
            print(f"| {name} | {' | '.join(map(str, cells))} |")


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(statistics.mean(row[key] for row in rows))


def main() -> None:
    """Run the chosen experiments, append their rows to the results, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data", nargs="+", default=["fashion-mnist"], choices=list(THESIS))
    parser.add_argument("--only", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--set", nargs="+", default=[], help="fields of the algorithm, such as order=epochs")
    parser.add_argument("--jobs", type=int, default=min(2, psutil.cpu_count() or 1))
    parser.add_argument("--work", type=Path, help="folder that keeps the runs, so that they can be resumed")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    changes = {key: yaml.safe_load(value) for key, value in (text.split("=", 1) for text in given.set)}
    version, cases = commit(), [(n, d, s) for d in given.data for s in given.seeds for n in given.only]

    def measure(case: tuple[str, str, int]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (given.work or Path(temporary)) / "-".join(map(str, [*case, given.rounds, *given.set]))
            row = {"commit": version, "machine": machine(), **run(*case, given.rounds, changes, folder)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key not in "gp"}), flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(measure, [] if given.table else cases))
    for data in given.data:
        print_table(data)


if __name__ == "__main__":
    main()
