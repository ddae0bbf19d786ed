"""Compares the estimate of training memory with the peaks that the kernel measures.

    python benchmarks/memory.py            every model at two widths, two batch sizes, four precisions
    python benchmarks/memory.py --only vgg16 --precisions fp32
    python benchmarks/memory.py --device cuda         on a GPU; --table --device cuda prints results/memory_gpu.jsonl
    python benchmarks/memory.py --table    print the results in results/memory.jsonl

Each case runs in its own process, prepared like a worker before its first task: torch is loaded, the model is traced,
and the received arrays are a file. The measured peak is the largest growth of its resident memory during training.
Linux only, because the kernel records that peak and resets it on request.

On a GPU, one process measures all cases, after CUDA's libraries have taken what they need. The peak is that of torch's
tensors. ``outside`` is what else is taken of the GPU: CUDA's context, the code of its kernels, and other processes.
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

    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.submodels.slices import Slice
    from fedquilt_common.tracing.trace import Blueprint
    from fedquilt_common.types import Examples

_FOLDER = Path(__file__).parent / "results"
RESULTS = {"cpu": _FOLDER / "memory.jsonl", "cuda": _FOLDER / "memory_gpu.jsonl"}
SAMPLES: dict[str, tuple[tuple[int, ...], int]] = {
    **dict.fromkeys(("mlp", "convnet", "vgg16", "resnet18", "preact-resnet18", "mobilenet-v2"), ((3, 32, 32), 10)),
    "transformer": ((20,), 10_000),
    "wisdm-lstm": ((6, 200), 12),
    "resnet18-gn": ((22, 20, 20), 9),
    "casas-bilstm": ((2000,), 12),
    "epic-resnet18": ((1, 128, 400), 44),
    "image-cnn": ((1, 28, 28), 10),
    "tabular": ((561,), 6),
}
"""Shape of a sample and number of classes for the models of the zoo that are measured."""
MODELS = tuple(SAMPLES)
WORDS = ("transformer", "casas-bilstm")
"""Models of sequences of whole numbers."""
WIDE_MLP = {"hidden": [2048, 2048]}


@dataclass(frozen=True)
class Case:
    """A model of the zoo at a width, a batch size and a precision; ``optimiser``: one of those of ``training``."""

    model: str
    width: float
    batch: int
    precision: Literal["fp32", "amp", "fp16", "bf16"]
    optimiser: Literal["sgd", "adam", "rmsprop"] = "sgd"
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def params(self) -> dict[str, Any]:
        return WIDE_MLP if self.model == "mlp" else {}

    @property
    def shape(self) -> tuple[int, ...]:
        return SAMPLES[self.model][0]

    @property
    def classes(self) -> int:
        return SAMPLES[self.model][1]


def measure(case: Case) -> dict[str, int]:
    """Return the peak in bytes of training once as ``measured``; on the processor, a new process measures it."""
    if case.device == "cuda":
        return measure_gpu(case)
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(asdict(case))]
    return {"measured": int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)}


def measure_gpu(case: Case) -> dict[str, int]:
    """Return the peak of torch's memory on the GPU while it trains once, and what else is taken of it, ``outside``."""
    import torch

    from fedquilt_common.process.process_memory import gpu_peak_bytes, release_gpu_cache, reset_gpu_peak
    from fedquilt_common.training.precision import occupy_device

    occupy_device(training(case))  # as a worker does before its first task
    reset_gpu_peak()
    before = torch.cuda.memory_allocated()
    train_once(case)
    peak = (gpu_peak_bytes() or 0) - before
    release_gpu_cache()
    free, total = torch.cuda.mem_get_info()
    return {"measured": peak, "outside": total - free - torch.cuda.memory_reserved()}


def estimate(case: Case) -> int:
    """Return this version's estimate of the case's training memory, in bytes."""
    from fedquilt_common.tracing.memory_estimate import memory_to_train

    _, blueprint, part = prepare(case)
    return memory_to_train(blueprint, part, training(case)).total


def prepare(case: Case) -> tuple[Callable[[], nn.Module], Blueprint, Slice]:
    """Return the factory of the model, its blueprint, and the case's sub-model."""
    from fedquilt_common.models import build_model
    from fedquilt_common.submodels.selection import prefix
    from fedquilt_common.tracing.trace import blueprint_for

    build = build_model(case.model, case.params, case.shape, case.classes)
    blueprint = blueprint_for(build, examples(1, case).x)
    return build, blueprint, prefix(blueprint.anatomy, case.width, "ceil")


def training(case: Case) -> Training:
    """Return the settings of one epoch; SGD has momentum."""
    from fedquilt_common.experiment.training_section import Training

    momentum = 0.9 if case.optimiser == "sgd" else 0.0
    return Training(
        epochs=1, batch=case.batch, lr=0.01, momentum=momentum, precision=case.precision, optimiser=case.optimiser,
        device=case.device,
    )  # fmt: skip


def train_once(case: Case) -> int:
    """Train once and return the measured peak in bytes; ``measure`` runs this in a new process."""
    from fedquilt_common.learning_tasks import Classification
    from fedquilt_common.process.malloc import TRAINING, return_freed_memory
    from fedquilt_common.training.learner import TorchLearner
    from fedquilt_common.training.torch_setup import set_up_torch
    from fedquilt_common.wire.codec import FileArrays, write_arrays

    set_up_torch(1)
    return_freed_memory(TRAINING)
    build, blueprint, part = prepare(case)
    data = examples(3 * case.batch, case)
    learner = TorchLearner(build, training(case), Classification(case.classes), blueprint=lambda: blueprint)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "received", random_arrays(part))
        gc.collect()
        before = reset_peak()
        learner.train(FileArrays(Path(folder) / "received"), data, seed=0, part=part)
    return memory_status("VmHWM") - before


def random_arrays(part: Slice) -> dict[str, Any]:
    """Return arrays in place of received ones; the weights are small, so that half precision does not overflow."""
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


def reset_peak() -> int:
    """Return freed memory to the system and reset the kernel's peak; returns the resident bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory_status("VmRSS")


def memory_status(key: str) -> int:
    """Return a value of /proc/self/status, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def examples(count: int, case: Case) -> Examples:
    """Return random samples: ``x`` of shape (count, *case.shape), ``y`` of shape (count,)."""
    import numpy as np

    from fedquilt_common.types import Examples

    rng, size = np.random.default_rng(0), (count, *case.shape)
    x = rng.integers(0, case.classes, size) if case.model in WORDS else rng.standard_normal(size, dtype=np.float32)
    return Examples(x, rng.integers(0, case.classes, count))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print this version's estimate divided by the measured peak, one line for each model and width."""
    kinds = sorted({(row["precision"], row["batch"]) for row in rows})
    print("| model | width | " + " | ".join(f"{p}, batch {b}" for p, b in kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for model, width in dict.fromkeys((row["model"], row["width"]) for row in rows):
        cells = {(r["precision"], r["batch"]): r for r in rows if (r["model"], r["width"]) == (model, width)}
        print(f"| {model} | {width} | " + " | ".join(_cell(cells.get(kind)) for kind in kinds) + " |")


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    case = Case(**{name: row[name] for name in ("model", "width", "batch", "precision", "device") if name in row})
    return f"{estimate(case) / row['measured']:.2f} ({row['measured'] / 2**20:.0f} MiB)"


def main() -> None:
    """Measure the chosen cases and write them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--widths", nargs="+", type=float, default=[1.0, 0.4])
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 50])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "bf16", "amp"])
    parser.add_argument("--device", default="cpu", choices=list(RESULTS))
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    parser.add_argument("--table", action="store_true", help="print the results, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(train_once(Case(**json.loads(given.one))))
        return
    if given.table:
        print_table([json.loads(line) for line in RESULTS[given.device].read_text().splitlines()])
        return
    origin = {"commit": commit(), "machine": machine(with_gpu=given.device == "cuda")}
    product = itertools.product(given.only, given.widths, given.batches, given.precisions)
    cases = [Case(*case, device=given.device) for case in product]
    rows = list[dict[str, Any]]()
    for case in cases:
        rows.append({**origin, **asdict(case), **measure(case)})
        if not given.dry_run:
            RESULTS[given.device].write_text("".join(json.dumps(row) + "\n" for row in rows))
    print_table(rows)


if __name__ == "__main__":
    main()
