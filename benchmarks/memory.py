"""Holds the estimate of the memory that training takes against peaks that the kernel saw.

    python benchmarks/memory.py            every model at two widths, two batch sizes, four precisions
    python benchmarks/memory.py --only vgg16 --precisions fp32
    python benchmarks/memory.py --table    what results/memory.jsonl holds

Each case is a process of its own, set up as a worker is before its first task: torch is loaded, the model is traced,
the received arrays are a file. What its resident memory grows by while it trains, at its highest, is the measured peak.
Linux only (the kernel keeps that peak, and forgets it when asked).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from provenance import commit, machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from fedquilt_common.experiment.sections import Training
    from fedquilt_common.submodels.slices import Slice
    from fedquilt_common.tracing.trace import Blueprint
    from fedquilt_common.types import Examples

RESULTS = Path(__file__).parent / "results" / "memory.jsonl"
MODELS = ("mlp", "convnet", "vgg16", "resnet18", "preact-resnet18", "mobilenet-v2", "transformer")
"""Every model of the zoo that can be cut."""
WIDE_MLP = {"hidden": [2048, 2048]}
IMAGE, WORDS, TOKENS = (3, 32, 32), 10_000, 20


@dataclass(frozen=True)
class Case:
    """A model of the zoo at a width, a batch size and a precision; ``optimiser``: one of those of ``training``."""

    model: str
    width: float
    batch: int
    precision: Literal["fp32", "amp", "fp16", "bf16"]
    optimiser: Literal["sgd", "adam", "rmsprop"] = "sgd"

    @property
    def params(self) -> dict[str, Any]:
        return WIDE_MLP if self.model == "mlp" else {}

    @property
    def shape(self) -> tuple[int, ...]:
        return (TOKENS,) if self.model == "transformer" else IMAGE

    @property
    def classes(self) -> int:
        return WORDS if self.model == "transformer" else 10


def measure(case: Case) -> int:
    """The peak of training once, in bytes, in a new process."""
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(asdict(case))]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def estimate(case: Case) -> int:
    """What this version of fedquilt expects of it, in bytes."""
    from fedquilt_common.tracing.memory_estimate import memory_to_train

    _, blueprint, part = planned(case)
    return memory_to_train(blueprint, part, training(case)).total


def planned(case: Case) -> tuple[Callable[[], nn.Module], Blueprint, Slice]:
    """The model, how it is cut, and the case's part of it."""
    from fedquilt_common.models import build_model
    from fedquilt_common.submodels.selection import prefix
    from fedquilt_common.tracing.trace import blueprint_for

    build = build_model(case.model, case.params, case.shape, case.classes)
    blueprint = blueprint_for(build, examples(1, case).x)
    return build, blueprint, prefix(blueprint.anatomy, case.width, "ceil")


def training(case: Case) -> Training:
    """One epoch, with momentum where the optimiser has it."""
    from fedquilt_common.experiment.sections import Training

    momentum = 0.9 if case.optimiser == "sgd" else 0.0
    return Training(
        epochs=1, batch=case.batch, lr=0.01, momentum=momentum, precision=case.precision, optimiser=case.optimiser
    )  # fmt: skip


def train_once(case: Case) -> int:
    """What ``measure`` runs in its process."""
    from fedquilt_common.process.malloc import TRAINING, return_freed_memory
    from fedquilt_common.training.learner import TorchLearner, set_up_torch
    from fedquilt_common.wire.codec import FileArrays, write_arrays

    set_up_torch(1)
    return_freed_memory(TRAINING)
    build, blueprint, part = planned(case)
    data = examples(3 * case.batch, case)
    learner = TorchLearner(build, training(case), case.classes, blueprint=lambda: blueprint)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "received", received(part))
        gc.collect()
        before = forget_the_peak()
        learner.train(FileArrays(Path(folder) / "received"), data, seed=0, part=part)
    return status("VmHWM") - before


def received(part: Slice) -> dict[str, Any]:
    """Arrays as a board gets them; small weights, so that nothing overflows in half precision."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, shape in part.shapes.items():
        if part.anatomy.arrays[name].dtype != "float32":
            arrays[name] = np.zeros(shape, part.anatomy.arrays[name].dtype)
        elif name.endswith("running_var"):
            arrays[name] = np.ones(shape, np.float32)
        else:
            arrays[name] = rng.standard_normal(shape, dtype=np.float32)
            arrays[name] *= np.float32(0.02)
    return arrays


def forget_the_peak() -> int:
    """Give back what is free, let the kernel count anew; the resident bytes now."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(key: str) -> int:
    """Bytes, of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def examples(count: int, case: Case) -> Examples:
    import numpy as np

    from fedquilt_common.types import Examples

    rng, size = np.random.default_rng(0), (count, *case.shape)
    words = len(case.shape) == 1
    x = rng.integers(0, case.classes, size) if words else rng.standard_normal(size, dtype=np.float32)
    return Examples(x, rng.integers(0, case.classes, count))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """This version's estimate over the measured peak, one line a model and width."""
    kinds = sorted({(row["precision"], row["batch"]) for row in rows})
    print("| model | width | " + " | ".join(f"{p}, batch {b}" for p, b in kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for model, width in dict.fromkeys((row["model"], row["width"]) for row in rows):
        cells = {(r["precision"], r["batch"]): r for r in rows if (r["model"], r["width"]) == (model, width)}
        print(f"| {model} | {width} | " + " | ".join(_cell(cells.get(kind)) for kind in kinds) + " |")


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    case = Case(**{name: row[name] for name in ("model", "width", "batch", "precision")})
    return f"{estimate(case) / row['measured']:.2f} ({row['measured'] / 2**20:.0f} MiB)"


def main() -> None:
    """Measure what was asked for and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--widths", nargs="+", type=float, default=[1.0, 0.4])
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 50])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "bf16", "amp"])
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    parser.add_argument("--table", action="store_true", help="print the results, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(train_once(Case(**json.loads(given.one))))
        return
    if given.table:
        print_table([json.loads(line) for line in RESULTS.read_text().splitlines()])
        return
    told = {"commit": commit(), "machine": machine()}
    product = itertools.product(given.only, given.widths, given.batches, given.precisions)
    cases = [Case(*case) for case in product]
    rows = [{**told, **asdict(case), "measured": measure(case)} for case in cases]
    print_table(rows)
    if not given.dry_run:
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
