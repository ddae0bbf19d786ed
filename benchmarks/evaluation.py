"""Measures how long the coordinator takes to evaluate a model, with one thread and with all cores.

    python benchmarks/evaluation.py              measure, print, append to benchmarks/results/evaluation.jsonl
    python benchmarks/evaluation.py --dry-run    measure and print only

``before`` is one thread with the coordinator's usual settings of malloc, as up to commit 2de3b8a. ``reuse`` is one
thread that reuses freed memory. ``all`` also spreads the batches over all cores, as the coordinator does. The three
take turns; ``reuse`` and ``all`` end with freed memory returned to the system.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

RESULTS = Path(__file__).parent / "results" / "evaluation.jsonl"
CASES: dict[str, tuple[tuple[int, ...], int]] = {
    "mlp": ((1, 28, 28), 10_000),
    "image-cnn": ((1, 28, 28), 10_000),
    "convnet": ((1, 28, 28), 10_000),
    "mobilenet-v2": ((3, 32, 32), 512),
    "resnet18": ((3, 32, 32), 512),
}
"""Shape of an image, and number of images."""
CLASSES = 10


@dataclass(frozen=True)
class Way:
    """A way to evaluate: threads, and what surrounds the evaluation."""

    threads: int
    around: Callable[[], AbstractContextManager[None]]


def measure(model: str, turns: int) -> dict[str, Any]:
    """Return the medians of a model's evaluation in each way.

    Raises:
        SystemExit: the ways give different scores.
    """
    from fedquilt_common.process.cores import available_cores
    from fedquilt_common.process.malloc import return_freed_memory, reuse_freed_memory

    return_freed_memory()
    ways = {
        "before": Way(1, contextlib.nullcontext),
        "reuse": Way(1, reuse_freed_memory),
        "all": Way(available_cores(), reuse_freed_memory),
    }
    evaluate = make_evaluation(model)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    scores = set()
    for _ in range(1 + turns):
        for name, way in ways.items():
            started, processor = time.perf_counter(), time.process_time()
            with way.around():
                scores.add(str(evaluate(way.threads)))
            taken[name].append((time.perf_counter() - started, time.process_time() - processor))
    if len(scores) > 1:
        raise SystemExit(f"{model}: the scores differ: {scores}")
    kinds = {"seconds": 0, "processor_seconds": 1}
    return {kind: {name: round(statistics.median(one[place] for one in found[1:]), 4) for name, found in taken.items()}
            for kind, place in kinds.items()}  # fmt: skip


def make_evaluation(model: str) -> Callable[[int], dict[str, float]]:
    """Return what evaluates a model on random images with a number of threads."""
    import numpy as np

    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.learning_tasks import Classification
    from fedquilt_common.models import build_model
    from fedquilt_common.training.learner import TorchLearner
    from fedquilt_common.training.torch_setup import set_up_torch
    from fedquilt_common.types import Examples

    set_up_torch()
    (shape, count), rng = CASES[model], np.random.default_rng(0)
    data = Examples(rng.standard_normal((count, *shape), dtype=np.float32), rng.integers(0, CLASSES, count))
    build = build_model(model, {}, shape, CLASSES)
    start = TorchLearner(build, Training(), Classification(CLASSES)).init(0)
    return lambda threads: TorchLearner(build, Training(), Classification(CLASSES), threads=threads).evaluate(
        start, data
    )


def main() -> None:
    """Measure the chosen models and append them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    given = parser.parse_args()
    version = commit()
    for model in given.only:
        around = machine()
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        row = {"at": at, "commit": version, "machine": around, "model": model, "images": CASES[model][1],
               **measure(model, given.turns)}  # fmt: skip
        print(row, flush=True)
        if not given.dry_run:
            append_result(RESULTS, row)


if __name__ == "__main__":
    main()
