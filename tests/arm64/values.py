"""Computes on one machine what ``compare`` holds against another's: ``python -m tests.arm64.values FILE.npz``.

Every number starts from seeds or from numpy's PCG64, so all machines start from the same bits. The groups, which are
the first part of each name:

- ``agreed``: what coordinator and boards compute independently and must share, such as partitions and fingerprints.
- ``initial``: models as their seed makes them. In a run, boards receive the coordinator's.
- ``drawn``: other random numbers of torch.
- ``labels`` and ``augmented``: soft labels and augmented samples.
- ``step`` and ``predicted``: a model after a step from ``start``, and its outputs.
- ``epoch``: a client's whole task of digits-fedavg.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.aggregation.soft_labels import Quantiser, mean_labels, mixup, sharpen, softmax
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.augment import AUGMENTATIONS
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.public import digest_public_set, public_set
from fedquilt_common.datasets.shares import digest_shares, shares, take_samples
from fedquilt_common.errors import UncuttableModelError, UnsupportedPrecisionError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.patch_layout import patch_layout, write_patch
from fedquilt_common.submodels.selection import prefix, random_subset, window
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Arrays, Examples, Precision
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, SliceMessage, TaskMessage

Values = Iterator[tuple[str, NDArray[Any]]]

CLASSES = 4
BATCH = 8
PRECISIONS = ("fp32", "amp", "fp16", "bf16")
WIRE: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
SCHEMES: tuple[dict[str, Any], ...] = (
    {"scheme": "uniform"},
    {"scheme": "per-class", "per_class": 5, "classes": [2, 6]},
    *({"scheme": "dirichlet", "alpha": alpha} for alpha in (0.05, 0.3, 1.0, 100.0)),
    *({"scheme": "dirichlet-per-class", "alpha": alpha} for alpha in (0.05, 0.3, 1.0, 100.0)),
)
SEEDS = range(25)
SIZES: Mapping[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((1, 8, 8), {}),
    "tabular": ((30,), {}),
    "hars": ((30,), {"number": 9}),
    "convnet": ((3, 16, 16), {"width": 0.5}),
    "image-cnn": ((1, 16, 16), {}),
    "vgg16": ((3, 32, 32), {"width": 0.25}),
    "resnet18": ((3, 16, 16), {"width": 0.25}),
    "preact-resnet18": ((3, 16, 16), {"width": 0.25}),
    "mobilenet-v2": ((3, 16, 16), {"width": 0.25}),
    "time-series": ((4, 50), {}),
    "harb": ((4, 50), {"number": 9}),
    "transformer": ((6,), {"embed": 32, "hidden": 64, "heads": 2, "layers": 2}),
    "aep-mlp": ((18,), {}),
    "wisdm-lstm": ((6, 50), {}),
    "resnet18-gn": ((22, 20, 20), {"width": 0.25}),
    "casas-bilstm": ((50,), {"vocabulary": 50}),
    "epic-resnet18": ((1, 32, 32), {"width": 0.25}),
}
"""Shape of a sample, and parameters that keep a step short under emulation.

Every model is here but ``yolov8n``, which needs a further package.
"""


def rng(*purpose: object) -> np.random.Generator:
    """Return a generator whose uniform numbers have the same bits everywhere."""
    return np.random.Generator(np.random.PCG64(derive_seed("arm64", *purpose)))


def digests(found: list[str]) -> NDArray[np.uint8]:
    """Return hex digests as bytes, one digest a row."""
    return np.array([list(bytes.fromhex(digest)) for digest in found], np.uint8)


def experiment(**changes: Any) -> Experiment:
    """Return an experiment on the digits."""
    sections = {
        "name": "arm64",
        "rounds": 1,
        "data": {"set": "digits", "clients": 8},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        "participation": {"per_round": 8, "quorum": 8},
    }
    return Experiment.model_validate({**sections, **changes})


def partitions() -> Values:
    """Yield the digests of shares and public sets, for each scheme and many seeds."""
    digits = load_dataset("digits")
    yield "agreed/data set", digests([digest_public_set(digits.train.x), digest_public_set(digits.test.x)])
    for scheme in SCHEMES:
        each = [experiment(seed=seed, data={"set": "digits", "clients": 8, "partition": scheme}) for seed in SEEDS]
        name = " ".join(str(value) for value in scheme.values())
        yield f"agreed/shares/{name}", digests([digest_shares(shares(one, digits, 0.25)) for one in each])
    public = experiment(data={"set": "digits", "clients": 8, "public": {"samples": 100}})
    yield "agreed/public set", digests([digest_public_set(public_set(public, digits))])


def fingerprints() -> Values:
    """Yield seeds, and fingerprints of tasks with slices and scalars."""
    yield "agreed/seeds", np.array([derive_seed(7, "purpose", number, 0.1) for number in range(100)], np.uint64)
    round_message = RoundMessage(
        run="run",
        round=3,
        exchange=1,
        patches=[PatchMessage(slot=0, digest="5" * 64, size=9)],
        tasks=[
            TaskMessage(clients=[0, 1], kind="train", patches=[0], scalars={"lr": 0.1 + 0.2, "mu": 1e-30}),
            TaskMessage(clients=[2], kind="train", patches=[0], scalars={"lr": 1 / 3}, slice=0),
        ],
        slices=[SliceMessage(base=0, kept=[[0, 4], [2, 9]])],
        since={"1": (2, 0)},
    )
    found = [round_message.fingerprint(task, client) for task in round_message.tasks for client in task.clients]
    yield "agreed/fingerprints", digests(found)


def start_of(like: Arrays) -> dict[str, NDArray[Any]]:
    """Return numbers of a usual size for each array: weights around 0, scales and variances around 1."""
    return {name: _usual(name, array) for name, array in like.items()}


def _usual(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "f":
        return np.zeros_like(array)
    around = 1.0 if array.ndim == 1 and name.endswith(("weight", "running_var")) else 0.0
    reach = 1.0 / np.sqrt(max(1, array[0].size)) if array.ndim > 1 else 0.1
    return (around + reach * rng("start", name).uniform(-1, 1, array.shape)).astype(np.float32)


def without_dropout(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that builds the same module with all dropouts at 0."""

    def make() -> nn.Module:
        module = build()
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return module

    return make


def samples_for(name: str) -> Examples:
    """Return a batch that the model takes, with labels."""
    shape, _ = SIZES[name]
    draw = rng("samples", name)
    labels = draw.integers(0, CLASSES, BATCH)
    if name in ("transformer", "casas-bilstm"):
        return Examples(draw.integers(0, CLASSES, (BATCH, *shape)), labels)
    return Examples(draw.uniform(-1, 1, (BATCH, *shape)).astype(np.float32), labels)


def learner_for(name: str, precision: str = "fp32") -> TorchLearner:
    """Return a learner of one step for a model without dropout."""
    shape, parameters = SIZES[name]
    training = Training.model_validate({"epochs": 1, "batch": BATCH, "lr": 0.05, "precision": precision})
    return TorchLearner(
        without_dropout(build_model(name, parameters, shape, CLASSES)), training, Classification(CLASSES)
    )


def flatten(arrays: Arrays) -> NDArray[np.float32]:
    """Return all floating-point numbers of a model in one vector."""
    floats = [np.asarray(arrays[name]).ravel() for name in arrays if np.asarray(arrays[name]).dtype.kind == "f"]
    return np.concatenate(floats).astype(np.float32)


def models() -> Values:
    """Yield each model as it starts, after a step in each precision, and its outputs."""
    for name in SIZES:
        started = time.perf_counter()
        data, learner = samples_for(name), learner_for(name)
        initial = learner.init(3)
        start = start_of(initial)
        yield f"initial/{name}", flatten(initial)
        yield f"start/{name}", flatten(start)
        yield f"predicted/{name}", learner.predict(start, data)[0].ravel()
        for precision in PRECISIONS:
            yield f"step/{name}/{precision}", _train(learner_for(name, precision), start, data)
        print(f"{time.perf_counter() - started:8.1f} s  {name}", flush=True)


def _train(learner: TorchLearner, start: Arrays, data: Examples) -> NDArray[np.float32]:
    """Return the trained numbers; an empty vector if the model cannot be trained in this precision here."""
    try:
        return flatten(learner.train(start, data, seed=5).arrays)
    except UnsupportedPrecisionError:
        return np.zeros(0, np.float32)


def sub_models() -> Values:
    """Yield the digests of all patches of three sub-models, for each model that can be cut."""
    for name in SIZES:
        data = samples_for(name)
        try:
            anatomy = blueprint_for(learner_for(name).build, data.x).anatomy
        except UncuttableModelError:
            continue
        yield f"agreed/patches/{name}", digests(list(_patches(name, anatomy, start_of(learner_for(name).init(3)))))


def _patches(name: str, anatomy: Anatomy, arrays: Arrays) -> Iterator[str]:
    slices = [
        prefix(anatomy, 0.5, "ceil"),
        window(anatomy, 0.3, "floor", lambda group: 2 * group.size // 3),
        random_subset(anatomy, 0.4, rng("subset", name)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for patch in patch_layout(slices):
            for precision in WIRE:
                yield write_patch(Path(folder) / "patch", arrays, patch, precision).digest


def containers() -> Values:
    """Yield the digests of containers in each precision of the wire."""
    arrays: Arrays = {"a": rng("codec").uniform(-9, 9, (31, 7)).astype(np.float32), "b": np.arange(5)}
    with tempfile.TemporaryDirectory() as folder:
        found = [write_arrays(Path(folder) / "file", arrays, precision).digest for precision in WIRE]
    yield "agreed/containers", digests(found)


def soft_labels() -> Values:
    """Yield what the algorithms with soft labels compute from the same logits."""
    logits = [rng("logits", client).uniform(-5, 5, (50, 10)).astype(np.float32) for client in range(3)]
    replies = {c: Reply({"logits": each}, 1.0, {"accuracy": 0.3 + 0.2 * c}) for c, each in enumerate(logits)}
    coded = Quantiser().encode(logits[0])
    yield "labels/quantised", coded["codes"]
    yield "labels/dequantised", Quantiser().decode(coded, 10)
    yield "labels/mean", np.asarray(mean_labels(replies, by_accuracy=True)["logits"])
    yield "labels/softmax", softmax(logits[0])
    yield "labels/sharpened", sharpen(softmax(logits[0]), 0.1)
    yield "labels/mixup", mixup(samples_for("mlp").x, 11, 0.3)


def augmented() -> Values:
    """Yield samples after each augmentation."""
    shapes = {None: (30,), 1: (30,), 2: (4, 50), 3: (3, 16, 16)}
    for name, (augment, dimensions) in AUGMENTATIONS.items():
        x = rng("augmented", name).uniform(0, 1, (6, *shapes[dimensions])).astype(np.float32)
        yield f"augmented/{name}", np.asarray(augment(x, rng("augment", name)))


def drawn() -> Values:
    """Yield torch's random numbers: the order of samples in training, and the masks of dropout."""
    yield "agreed/order of samples", torch.randperm(1000, generator=torch.Generator().manual_seed(9)).numpy()
    torch.manual_seed(9)
    yield "drawn/uniform", torch.rand(1000).numpy()
    yield "drawn/normal", torch.randn(1000).numpy()
    yield "drawn/dropout", nn.functional.dropout(torch.ones(1000), 0.5).numpy()


def epoch() -> Values:
    """Yield a client's task of digits-fedavg: two epochs with momentum."""
    digits = load_dataset("digits")
    chosen = experiment(
        data={"set": "digits", "clients": 8, "partition": {"scheme": "dirichlet", "alpha": 0.3}}, seed=7
    )
    data = take_samples(digits, shares(chosen, digits)[0].train)
    training = Training(epochs=2, batch=16, lr=0.05, momentum=0.9)
    learner = TorchLearner(
        build_model("mlp", {}, digits.input_shape, digits.classes), training, Classification(digits.classes)
    )
    start = start_of(learner.init(3))
    yield "start/digits-fedavg", flatten(start)
    yield "epoch/digits-fedavg", flatten(learner.train(start, data, seed=5).arrays)


def again() -> Values:
    """Yield the same task once more, in a process that has trained in every precision before."""
    yield from ((f"{name}/again", array) for name, array in epoch() if name.startswith("epoch"))


GROUPS: tuple[Callable[[], Values], ...] = (
    fingerprints, partitions, containers, sub_models, drawn, soft_labels, augmented, epoch, models, again,
)  # fmt: skip


def main(file: Path) -> None:
    """Write all values to ``file``, and print the seconds of each group."""
    set_up_torch()
    found: dict[str, NDArray[Any]] = {}
    for group in GROUPS:
        started = time.perf_counter()
        found.update(group())
        print(f"{time.perf_counter() - started:8.1f} s  {group.__name__}", flush=True)
    np.savez(file, allow_pickle=False, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
