"""Table 3.5 of the FedAKD thesis: average accuracy gains of FedMD and FedAKD on HARS, ten different models.

    python benchmarks/soft_labels.py [--only fedmd fedakd] [--losses mse kl] [--seeds 1 2 3] [--rounds 50]

A client's gain is its model's accuracy on all test samples after the last round, less that of the same model trained on
the client's own samples alone, for the thesis's 20 epochs; the average is over the ten clients. Each client has 20
samples of each of its activities: of all six (iid), or of two to five of them (noniid); 100 samples are public. Each
line of ``results/soft_labels.jsonl`` is one run. ``--table`` prints the stored results.
"""

from __future__ import annotations

import argparse
import json
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

from fedquilt_common.models.tabular import HARS

RESULTS = Path(__file__).parent / "results" / "soft_labels.jsonl"
THESIS = {("fedmd", "iid"): 24.5, ("fedmd", "noniid"): 7.2, ("fedakd", "iid"): 25.4, ("fedakd", "noniid"): 27.5}
"""Published gains in per cent; the thesis does not state the number of runs."""
CLASSES = {"iid": None, "noniid": [2, 5]}
WARM_UP = 20
DISTILLATION = {"kd_epochs": 1, "kd_optimiser": "adam", "kd_lr": 0.001}
"""As in the code published with the thesis, for every client, independent of its own optimiser."""


def experiment(name: str, loss: str, kind: str, seed: int, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of the thesis's section 3.7, with ``changes`` to the algorithm's fields."""
    partition = {"scheme": "per-class", "per_class": 20, "classes": CLASSES[kind]}
    fields = {"kd_loss": loss, "warm_up_epochs": WARM_UP, **DISTILLATION, **changes}
    variants = [
        {"model": {"name": "hars", "number": number}, "training": {"optimiser": row.optimiser, "lr": row.lr}}
        for number, row in enumerate(HARS)
    ]
    return {
        "name": f"hars-{name}-{kind}", "seed": seed, "rounds": rounds,
        "data": {"set": "uci-har", "clients": 10, "partition": partition, "public": {"samples": 100}},
        "model": {"name": "tabular"}, "algorithm": {"name": name, **fields},
        "training": {"epochs": 2, "batch": 32},
        "fleet": [{"kind": "board", "agents": 1, "clients": 10, "variants": variants}],
    }  # fmt: skip


def run(name: str, loss: str, kind: str, seed: int, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Run an experiment once; returns its row with the gain of each client and their average, in per cent."""
    result = _simulate(experiment(name, loss, kind, seed, rounds, changes))
    last, alone = result["rounds"][-1], local_accuracies(kind, seed)
    gains = {client: 100 * (last["client_accuracy"][client] - alone[client]) for client in alone}
    best = [statistics.mean(row["client_accuracy"].values()) for row in result["rounds"]]
    return {
        "algorithm": name, "loss": loss, "data": kind, "seed": seed, "rounds": rounds, "changes": changes,
        "gain": round(statistics.mean(gains.values()), 2),
        "best_gain": round(100 * (max(best) - statistics.mean(alone.values())), 2),
        "local": round(100 * statistics.mean(alone.values()), 2), "final": round(100 * best[-1], 2),
        "gains": {client: round(gain, 1) for client, gain in gains.items()},
        "label_bytes": last["label_bytes"]["0"], "note": result["note"],
    }  # fmt: skip


_LOCAL: dict[tuple[str, int], dict[str, float]] = {}


def local_accuracies(kind: str, seed: int) -> dict[str, float]:
    """Return each client's accuracy after ``WARM_UP`` epochs on its own samples alone."""
    if (kind, seed) not in _LOCAL:
        _LOCAL[kind, seed] = _train_alone(kind, seed)
    return _LOCAL[kind, seed]


def _train_alone(kind: str, seed: int) -> dict[str, float]:
    from fedquilt_common.datasets import load_dataset
    from fedquilt_common.datasets.shares import shares, take_samples
    from fedquilt_common.experiment.experiment import Experiment
    from fedquilt_common.models import build_model
    from fedquilt_common.seeds import derive_seed
    from fedquilt_common.training.learner import TorchLearner, set_up_torch

    set_up_torch()
    made = Experiment.model_validate(experiment("fedmd", "mse", kind, seed, 1, {}))
    data = load_dataset("uci-har")
    accuracies = {}
    for client, share in enumerate(shares(made, data)):
        own = made.variant(client)
        build = build_model(own.model.name, own.model.params, data.input_shape, data.classes)
        learner = TorchLearner(build, own.training, data.classes)
        start = learner.init(derive_seed(derive_seed(seed, "client", client), "model"))
        trained = learner.train(start, take_samples(data, share.train), seed=seed, epochs=WARM_UP)
        accuracies[str(client)] = learner.evaluate(trained.arrays, data.test)["accuracy"]
    return accuracies


def _simulate(raw: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "experiment.yaml", Path(folder) / "run"
        path.write_text(yaml.safe_dump(raw))
        words = ["simulate", str(path), "--out", str(out), "--json"]
        subprocess.run([sys.executable, "-m", "fedquilt_common.cli", *words], check=True, capture_output=True)
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def print_table() -> None:
    """Print the means over the seeds of the stored results beside the thesis's numbers."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    print("| method | loss | data | seeds | local | final | gain | thesis |\n|---|---|---|---|---|---|---|---|")
    for (name, kind), published in THESIS.items():
        for loss in ("mse", "kl"):
            runs = [r for r in rows if (r["algorithm"], r["data"], r["loss"], r["changes"]) == (name, kind, loss, {})]
            if runs:
                means = [f"{statistics.mean(row[key] for row in runs):.1f}" for key in ("local", "final", "gain")]
                spread = f" ({min(r['gain'] for r in runs):.1f} to {max(r['gain'] for r in runs):.1f})"
                thesis = f"{published:.1f}" if loss == "mse" else ""
                cells = [name, loss, kind, len(runs), *means[:2], means[2] + spread, thesis]
                print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    """Run the chosen experiments, append their rows to the results, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", default=["fedmd", "fedakd"])
    parser.add_argument("--losses", nargs="+", default=["mse", "kl"])
    parser.add_argument("--data", nargs="+", default=list(CLASSES), choices=list(CLASSES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--set", nargs="+", default=[], help="fields of the algorithm, such as alpha=1")
    parser.add_argument("--jobs", type=int, default=min(2, psutil.cpu_count() or 1))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    changes = {key: yaml.safe_load(value) for key, value in (text.split("=", 1) for text in given.set)}
    cases = [(n, loss, d, s) for s in given.seeds for d in given.data for loss in given.losses for n in given.only]
    version = commit()
    if not given.table:
        for seed in given.seeds:  # in this thread, before other threads set up torch
            for kind in given.data:
                local_accuracies(kind, seed)

    def measure(case: tuple[str, str, str, int]) -> None:
        row = {"commit": version, "machine": machine(), **run(*case, given.rounds, changes)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({key: row[key] for key in ("algorithm", "loss", "data", "seed", "local", "final", "gain")}))

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(measure, [] if given.table else cases))
    print_table()


if __name__ == "__main__":
    main()
