"""Measures a training step and an evaluation batch of each model, with its numbers in three orders in memory.

    python benchmarks/training_step.py                     every model, whole and cut to an odd width, 1 and 2 threads
    python benchmarks/training_step.py --only vgg16        one model
    python benchmarks/training_step.py --dry-run           do not write to benchmarks/results/training_step.jsonl
    python benchmarks/training_step.py --device cuda       on a GPU, in fp32, amp, fp16 and bf16
    python benchmarks/training_step.py --table             print the results that are written

``contiguous`` is torch's order. ``samples`` has samples with their channels last, as fedquilt had before it chose the
order by a rule. ``rule`` is what ``choose_layout`` chooses, for samples and weights. The three take turns step by step,
so that other programs on the machine slow them alike. On the processor, each case has its own process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memory import SAMPLES, WORDS
from provenance import append_result, commit, machine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedquilt_common.training.memory_layout import MemoryLayout
    from fedquilt_common.training.optimisers import Optimiser
    from fedquilt_common.training.precision import Arithmetic
    from fedquilt_common.types import Examples

RESULTS = Path(__file__).parent / "results" / "training_step.jsonl"
CASES: dict[str, tuple[tuple[int, ...], int]] = {
    **SAMPLES, "time-series": ((9, 128), 6), "series-norm": ((9, 128), 6), "yolov8n": ((3, 160, 160), 10),
}  # fmt: skip
"""Shape of a sample and number of classes; ``series-norm`` has 1-d convolutions with batch norm."""
UNCUT = ("casas-bilstm", "wisdm-lstm", "time-series", "series-norm", "yolov8n", "tabular", "mlp", "image-cnn")
"""Models that are measured whole only."""
ORDERS = ("contiguous", "samples", "rule")
WARM_UP = 2
MOST_SECONDS = 6.0
"""Steps of a case are taken for this long, or ``MOST_STEPS``; always at least ``LEAST_STEPS`` of each order."""
LEAST_STEPS = 5
MOST_STEPS = 24


@dataclass(frozen=True)
class Case:
    """A model at a width, a batch size, the threads of one operation, a device and a precision."""

    model: str
    width: float
    batch: int
    threads: int
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "amp", "fp16", "bf16"] = "fp32"


def measure(case: Case) -> dict[str, Any] | None:
    """Return the medians of a case; None if its model cannot be built here.

    On the processor, a new process measures it. A GPU takes seconds to start in each.
    """
    if case.device == "cuda":
        return measure_here(case)
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(asdict(case))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{case.model}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_here(case: Case) -> dict[str, Any]:
    """Measure a case in this process."""
    from fedquilt_common.process.malloc import keep_freed_memory
    from fedquilt_common.training.torch_setup import set_up_torch

    set_up_torch(case.threads)
    keep_freed_memory()
    on_gpu = case.device == "cuda"
    runs = {order: Run.start(case, order) for order in ORDERS}
    return {
        "training": compare({order: run.train for order, run in runs.items()}, on_gpu=on_gpu),
        "evaluation": compare({order: run.evaluate for order, run in runs.items()}, on_gpu=on_gpu),
        "orders": {order: sorted(run.layout.dimensions) for order, run in runs.items()},
    }


def compare(actions: Mapping[str, Callable[[], object]], *, on_gpu: bool) -> dict[str, Any]:
    """Take turns with some actions.

    Args:
        actions: by name.
        on_gpu: whether a GPU does them; each action waits for it at the end.

    Returns:
        For each, medians of the milliseconds and of the processor's; and as ``gain`` the median quotient of the
        processor's time with contiguous numbers by its own, which other programs change the least. On a GPU, ``gain``
        is the quotient of the milliseconds, because the processor only starts the operations there.
    """
    for _, action in itertools.product(range(WARM_UP), actions.values()):
        action()
    rounds: list[dict[str, tuple[float, float]]] = []
    clock = 0 if on_gpu else 1
    end = time.perf_counter() + MOST_SECONDS
    while len(rounds) < LEAST_STEPS or (len(rounds) < MOST_STEPS and time.perf_counter() < end):
        names = list(actions)
        first = len(rounds) % len(names)
        rounds.append({name: _time(actions[name]) for name in names[first:] + names[:first]})
    return {
        "steps": len(rounds),
        "ms": {name: round(1e3 * statistics.median(one[name][0] for one in rounds), 3) for name in actions},
        "processor_ms": {name: round(1e3 * statistics.median(one[name][1] for one in rounds), 3) for name in actions},
        "gain": {name: round(statistics.median(one["contiguous"][clock] / one[name][clock] for one in rounds), 3)
                 for name in actions},
    }  # fmt: skip


def _time(action: Callable[[], object]) -> tuple[float, float]:
    started, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - processor


@dataclass(frozen=True)
class Run:
    """A model with an optimiser, and a batch of samples."""

    module: nn.Module
    arithmetic: Arithmetic
    layout: MemoryLayout
    optimiser: Optimiser
    data: Examples

    @classmethod
    def start(cls, case: Case, order: str) -> Run:
        from fedquilt_common.experiment.training_section import Training
        from fedquilt_common.training.memory_layout import CONTIGUOUS, MemoryLayout, choose_layout
        from fedquilt_common.training.optimisers import Optimiser
        from fedquilt_common.training.precision import LossScale, choose_arithmetic

        module, data = build(case), examples(case)
        settings = Training(batch=case.batch, lr=1e-3, momentum=0.9, device=case.device, precision=case.precision)
        arithmetic = choose_arithmetic(settings)
        rule = choose_layout(module, data.x)
        before = MemoryLayout(frozenset({4}))
        layout = {"contiguous": CONTIGUOUS, "samples": before, "rule": rule}[order]
        module = arithmetic.place(module)
        if order == "rule":
            layout.order_weights(module)
        scale = LossScale() if case.precision == "amp" else None
        return cls(module, arithmetic, layout, Optimiser(list(module.parameters()), settings, scale), data)

    def train(self) -> None:
        """Take a step, as ``SgdLoop`` does; detectors learn the mean of their outputs, whatever that means."""
        self.module.train()
        with self.arithmetic.autocast():
            output = self.module(self._samples())
        loss = self._loss(output)
        loss.item()
        self.optimiser.step(loss)
        self._wait()

    def _loss(self, output: Any) -> Tensor:
        import torch
        from torch.nn import functional

        outputs = _tensors(output)
        if len(outputs) > 1 or outputs[0].dim() != 2:
            return torch.stack([one.float().mean() for one in outputs]).sum()
        return functional.cross_entropy(outputs[0].float(), torch.from_numpy(self.data.y).to(self.arithmetic.device))

    def evaluate(self) -> None:
        """Pass the batch through the module without gradients, in the precision of the training."""
        import torch

        self.module.eval()
        with torch.inference_mode(), self.arithmetic.autocast():
            self.module(self._samples())
        self._wait()

    def _samples(self) -> Tensor:
        from fedquilt_common.training.memory_layout import to_tensor

        return self.layout.order(self.arithmetic.inputs(to_tensor(self.data.x.copy())))

    def _wait(self) -> None:
        if self.arithmetic.device == "cuda":
            import torch

            torch.cuda.synchronize()


def _tensors(output: Any) -> list[Any]:
    """Return all tensors of what a model returns, a tensor or a list of such."""
    return [found for one in output for found in _tensors(one)] if isinstance(output, list | tuple) else [output]


def build(case: Case) -> nn.Module:
    """Build the case's model or sub-model with small random weights, the same in each process."""
    import torch

    from fedquilt_common.submodels.selection import prefix
    from fedquilt_common.tracing.resize import cut_module
    from fedquilt_common.tracing.trace import blueprint_for

    torch.manual_seed(0)
    make = factory(case)
    if case.width == 1:
        return make()
    blueprint = blueprint_for(make, examples(case).x)
    module = cut_module(make, blueprint, prefix(blueprint.anatomy, case.width, "ceil"))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return module


def factory(case: Case) -> Callable[[], nn.Module]:
    """Return what builds the whole model."""
    from torch import nn

    from fedquilt_common.models import build_model

    shape, classes = CASES[case.model]
    if case.model != "series-norm":
        return build_model(case.model, {}, shape, classes)
    return lambda: nn.Sequential(
        nn.Conv1d(shape[0], 64, 5), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5), nn.BatchNorm1d(64), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def examples(case: Case) -> Examples:
    """Return a batch of random samples."""
    import numpy as np

    from fedquilt_common.types import Examples

    (shape, classes), rng = CASES[case.model], np.random.default_rng(0)
    size = (case.batch, *shape)
    x = rng.integers(0, classes, size) if case.model in WORDS else rng.standard_normal(size, dtype=np.float32)
    return Examples(x, rng.integers(0, classes, case.batch))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the processor's or the GPU's time with contiguous numbers, and how many times as fast the others are."""
    print("| model | width | on | step, contiguous | samples | rule | batch, contiguous | samples | rule | load |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        on_gpu = row.get("device") == "cuda"  # the first rows of the results name no device
        cells = [row["model"], row["width"], f"GPU, {row['precision']}" if on_gpu else f"{row['threads']} threads"]
        for kind in ("training", "evaluation"):
            found = row[kind]
            cells += [
                f"{found['ms' if on_gpu else 'processor_ms']['contiguous']:.2f} ms",
                *(f"{found['gain'][name]:.2f}" for name in ORDERS[1:]),
            ]
        print("| " + " | ".join(map(str, [*cells, row["machine"]["load_before"]])) + " |", flush=True)


def main() -> None:
    """Measure the chosen cases and append them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--widths", nargs="+", type=float, default=[1.0, 0.37])
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "amp", "fp16", "bf16"], help="on a GPU only")
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    parser.add_argument("--table", action="store_true", help="print the results, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_here(Case(**json.loads(given.one)))))
        return
    if given.table:
        print_table([json.loads(line) for line in RESULTS.read_text().splitlines()])
        return
    version = commit()
    on_gpu = given.device == "cuda"
    threads, precisions = ([1], given.precisions) if on_gpu else (given.threads, ["fp32"])
    for model, width, count, precision in itertools.product(given.only, given.widths, threads, precisions):
        if width == 1 or model not in UNCUT:
            case = Case(model, width, given.batch, count, given.device, precision)
            measure_and_keep(case, version, dry_run=given.dry_run)


def measure_and_keep(case: Case, version: str, *, dry_run: bool) -> None:
    """Measure a case of the commit ``version``, print it, and append it to the results."""
    around = machine(with_gpu=case.device == "cuda")
    if (found := measure(case)) is None:
        return
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {"at": at, "commit": version, "machine": around, **asdict(case), **found}
    print_table([row])
    if not dry_run:
        append_result(RESULTS, row)


if __name__ == "__main__":
    main()
