"""Measures what private training costs: seconds of a step and peak memory, with and without differential privacy.

    python benchmarks/privacy.py                    every model at three batch sizes
    python benchmarks/privacy.py --only mlp --batches 32
    python benchmarks/privacy.py --table            print the results in results/privacy_cost.jsonl

Each case runs in its own process, as in ``memory.py``. The peak of private training is that of steps which draw as many
samples as the memory estimate expects at most. Opacus is loaded before, as a board does before it measures its free
memory; ``opacus`` in the results is what that takes. The seconds are those of the processor, in steps that draw
``batch`` samples on average.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import memory
from provenance import append_result, commit, machine

if TYPE_CHECKING:
    from fedquilt_common.privacy.meter import PrivacyMeter
    from fedquilt_common.training.learner import TorchLearner

RESULTS = Path(__file__).parent / "results" / "privacy_cost.jsonl"
MODELS = ("mlp", "image-cnn", "tabular", "wisdm-lstm", "resnet18-gn")
STEPS = 6
MIB = 1 << 20


def case_of(model: str, batch: int) -> memory.Case:
    """Return a model of ``memory.SAMPLES`` in its full width and fp32; SGD has momentum."""
    return memory.Case(model, 1.0, batch, "fp32")


def estimate(model: str, batch: int, private: bool) -> int:
    """Return this version's estimate of the training memory, in bytes."""
    from fedquilt_common.tracing.memory_estimate import memory_to_train

    case = case_of(model, batch)
    _, blueprint, part = memory.prepare(case)
    return memory_to_train(blueprint, part, memory.training(case), private=private).total


def measure_peak(model: str, batch: int, private: bool) -> int:
    """Train three steps in this process, and return by how many bytes its memory grew at most."""
    from fedquilt_common.privacy.sample_batches import largest_draw
    from fedquilt_common.wire.codec import FileArrays, write_arrays

    size = largest_draw(batch) if private else batch
    case = case_of(model, size)
    learner = _make_learner(case, private, epochs=3)
    data = memory.examples(size, case)  # a step draws all of them
    _, _, part = memory.prepare(case)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "received", memory.random_arrays(part))
        gc.collect()
        before = memory.reset_peak()
        learner.train(FileArrays(Path(folder) / "received"), data, seed=0, part=part)
    return memory.memory_status("VmHWM") - before


def measure_seconds(model: str, batch: int, private: bool) -> float:
    """Train in this process, and return the median of the processor's seconds for a step."""
    from dataclasses import replace

    case, stamps = case_of(model, batch), list[float]()
    learner = _make_learner(case, private, epochs=1)
    learner = replace(learner, on_progress=lambda _: stamps.append(time.process_time()))
    learner.train(learner.init(0), memory.examples(STEPS * batch, case), seed=0)
    return statistics.median(after - before for before, after in itertools.pairwise(stamps))


def _make_learner(case: memory.Case, private: bool, epochs: int) -> TorchLearner:
    from fedquilt_common.learning_tasks import Classification
    from fedquilt_common.process.malloc import TRAINING, return_freed_memory
    from fedquilt_common.training.learner import TorchLearner
    from fedquilt_common.training.torch_setup import set_up_torch

    set_up_torch(1)
    return_freed_memory(TRAINING)
    if private:
        import fedquilt_common.training.private_gradients  # noqa: F401 - loads Opacus
    build, blueprint, _ = memory.prepare(case)
    settings = memory.training(case).model_copy(update={"epochs": epochs})
    meter = _make_meter() if private else None
    return TorchLearner(build, settings, Classification(case.classes), blueprint=lambda: blueprint, meter=meter)


def _make_meter() -> PrivacyMeter:
    """Return a meter with noise of 1, so that nothing is solved."""
    from fedquilt_common.experiment.privacy_section import Privacy
    from fedquilt_common.privacy.meter import PrivacyMeter
    from fedquilt_common.privacy.secret_noise import open_secret

    open_ = functools.partial(open_secret, "07" * 32)
    return PrivacyMeter(Privacy(epsilon=1000.0, delta=1e-6), STEPS, {}, 1.0, open_)


def measure_here(model: str, batch: int, private: bool) -> dict[str, Any]:
    """Measure a case in this process, which is new."""
    import torch

    before = memory.memory_status("VmRSS")
    if private:
        import fedquilt_common.training.private_gradients  # noqa: F401 - loads Opacus

    opacus = memory.memory_status("VmRSS") - before
    peak = measure_peak(model, batch, private)
    seconds = measure_seconds(model, batch, private)
    return {"peak": peak, "opacus": opacus, "seconds": round(seconds, 5), "torch": torch.__version__}


def measure(model: str, batch: int, private: bool) -> dict[str, Any]:
    """Measure a case in a new process, whose result also names the case and this version's estimate."""
    asked = json.dumps([model, batch, private])
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--one", asked], check=True, stdout=subprocess.PIPE, text=True
    )
    case = {"model": model, "batch": batch, "private": private, "estimate": estimate(model, batch, private)}
    return {**case, **json.loads(done.stdout)}


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the cost of each model and batch as Markdown; the estimate is that of the results."""
    print("| model | parameters | batch | seconds a step | peak, MiB | estimate, MiB |")
    print("|---|---|---|---|---|---|")
    found = {(row["model"], row["batch"], row["private"]): row for row in rows}
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in rows):
        plain, private = found[model, batch, False], found[model, batch, True]
        seconds = f"{plain['seconds']:.4f} → {private['seconds']:.4f} (x {private['seconds'] / plain['seconds']:.0f})"
        peak, expected = (
            f"{plain[key] / MIB:.0f} → {private[key] / MIB:.0f}" for key in ("peak", "estimate")
        )  # fmt: skip
        print(f"| `{model}` | {_count_parameters(model):,} | {batch} | {seconds} | {peak} | {expected} |")


def _count_parameters(model: str) -> int:
    _, _, part = memory.prepare(case_of(model, 1))
    return part.entries


def main() -> None:
    """Measure the chosen cases and append them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 32, 64])
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    parser.add_argument("--table", action="store_true", help="print the results, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_here(*json.loads(given.one))))
        return
    if given.table:
        print_table([json.loads(line) for line in RESULTS.read_text().splitlines()])
        return
    origin = {"command": " ".join(["python", "benchmarks/privacy.py", *sys.argv[1:]]), "commit": commit()}
    rows = []
    for model, batch, private in itertools.product(given.only, given.batches, (False, True)):
        rows.append({**origin, "machine": machine(), **measure(model, batch, private)})
        if not given.dry_run:
            append_result(RESULTS, rows[-1])
    print_table(rows)


if __name__ == "__main__":
    main()
