"""Training, evaluation, prediction, statistics and the memory estimate on a CUDA device; ``make test-gpu`` runs these.

Each is compared with the processor: a GPU adds in another order, so the results agree only about. Without a device,
all are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.process.process_memory import (
    free_gpu_bytes,
    gpu_peak_bytes,
    release_gpu_cache,
    reset_gpu_peak,
)
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.memory_estimate import memory_to_train
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.precision import occupy_device
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

# Convolutions in TF32 differ from the processor's by a thousandth. CUDA reads this before its first operation.
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"

pytestmark = [
    pytest.mark.gpu,
    # cuDNN computes recurrent layers in bf16, but torch never puts their weights beside each other in that precision.
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device that torch can use"),
]
PRECISIONS = ["fp32", "amp", "fp16", "bf16"]
IMAGES, SERIES, WORDS = (3, 32, 32), (9, 128), (20,)
MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "mlp": ("mlp", {}, IMAGES),
    "convnet": ("convnet", {}, IMAGES),
    "image-cnn": ("image-cnn", {"dropout": 0.0}, IMAGES),
    "vgg16": ("vgg16", {"width": 0.25, "dropout": 0.0}, IMAGES),
    "resnet18": ("resnet18", {"width": 0.25}, IMAGES),
    "preact-resnet18": ("preact-resnet18", {"width": 0.25}, IMAGES),
    "resnet18-gn": ("resnet18-gn", {}, IMAGES),
    "mobilenet-v2": ("mobilenet-v2", {"width": 0.5}, IMAGES),
    "time-series": ("time-series", {"dropout": 0.0}, SERIES),
    "wisdm-lstm": ("wisdm-lstm", {"dropout": 0.0}, SERIES),
    "transformer": ("transformer", {"dropout": 0.0}, WORDS),
}
CLASSES = 5


@pytest.fixture(autouse=True, scope="module")
def reproducible_torch() -> Iterator[None]:
    """Let operations that are not deterministic raise errors, as in a training process."""
    set_up_torch()
    yield
    torch.set_deterministic_debug_mode("default")


def builder(model: str) -> Callable[[], nn.Module]:
    name, params, shape = MODELS[model]
    return build_model(name, params, shape, CLASSES)


def samples(model: str, count: int = 48) -> Examples:
    rng, shape = np.random.default_rng(0), (count, *MODELS[model][2])
    x = rng.integers(0, CLASSES, shape) if model == "transformer" else rng.standard_normal(shape, dtype=np.float32)
    return Examples(x, rng.integers(0, CLASSES, count))


def learner(model: str, device: Any, **settings: Any) -> TorchLearner:
    build, data = builder(model), samples(model)
    training = Training(**{"batch": 16, "lr": 0.01, "momentum": 0.5, "device": device, **settings})
    return TorchLearner(build, training, Classification(CLASSES), blueprint=lambda: blueprint_for(build, data.x))


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("model", list(MODELS))
def test_training_is_reproducible(model: str) -> None:
    cuda, data = learner(model, "cuda"), samples(model)
    found, again = (cuda.train(cuda.init(0), data, seed=1).arrays for _ in range(2))
    assert all(found[name].tobytes() == again[name].tobytes() for name in found)


@pytest.mark.parametrize("model", list(MODELS))
def test_a_step_is_about_that_of_the_processor(model: str) -> None:
    """One step, because a deep network with batch norm makes a difference of a millionth visible within three."""
    data = samples(model)
    found, expected = (step_of(learner(model, device, batch=len(data)), data) for device in ("cuda", "cpu"))
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def step_of(one: TorchLearner, data: Examples) -> NDArray[np.float32]:
    """What one step changes in the parameters, as one vector."""
    start = one.init(0)
    trained = one.train(start, data, seed=1).arrays
    return np.concatenate([(trained[name] - start[name]).ravel() for name in sorted(one.parameters)])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", ["mlp", "convnet", "resnet18", "wisdm-lstm", "transformer"])
def test_every_precision_trains(model: str, precision: str) -> None:
    one, data = learner(model, "cuda", precision=precision, epochs=5), samples(model)
    result = one.train(one.init(0), data, seed=1)
    assert all(array.dtype.kind == "i" or array.dtype == np.float32 for array in result.arrays.values())
    assert result.loss < one.evaluate(one.init(0), data)["loss"]


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "rmsprop"])
def test_an_optimiser_that_lasts_goes_through_a_checkpoint(optimiser: str) -> None:
    momentum = 0.5 if optimiser == "sgd" else 0.0
    one = learner("convnet", "cuda", optimiser=optimiser, momentum=momentum, lr=1e-3, batch=48)
    start, data, kept = one.init(0), samples("convnet"), dict[str, Any]()
    lasting = TorchLearner(one.build, one.training, one.task, lasting=LastingOptimisers(kept))
    first = lasting.train(start, data, seed=1, epochs=1).arrays
    assert kept
    lasting = replace(lasting, lasting=LastingOptimisers(kept))
    assert_close(
        lasting.train(first, data, seed=1, epochs=1).arrays, one.train(start, data, seed=1, epochs=2).arrays, 1e-4
    )


@pytest.mark.parametrize("model", list(MODELS))
def test_evaluation_and_prediction_are_about_those_of_the_processor(model: str) -> None:
    cuda, cpu, data = learner(model, "cuda"), learner(model, "cpu"), samples(model, 150)
    start = cpu.init(0)
    assert cuda.evaluate(start, data)["loss"] == pytest.approx(cpu.evaluate(start, data)["loss"], rel=1e-2)
    np.testing.assert_allclose(cuda.predict(start, data)[-1], cpu.predict(start, data)[-1], rtol=1e-2, atol=1e-2)
    assert reset_peak_of(lambda: cuda.evaluate(start, data)) > 0


def reset_peak_of(action: Callable[[], object]) -> int:
    reset_gpu_peak()
    action()
    return gpu_peak_bytes() or 0


def test_statistics_and_features_are_about_those_of_the_processor() -> None:
    cuda, cpu, data = learner("preact-resnet18", "cuda"), learner("preact-resnet18", "cpu"), samples("preact-resnet18")
    start = cpu.init(0)
    assert_close(cuda.statistics(start, data), cpu.statistics(start, data), 1e-2)
    found, expected = (one.features(start, data, 1).x for one in (cuda, cpu))
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_a_sub_model_trains() -> None:
    cuda, data = learner("resnet18", "cuda"), samples("resnet18")
    assert cuda.blueprint is not None
    part = prefix(cuda.blueprint().anatomy, 0.4, "ceil")
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(0.01, 0.02, shape).astype(part.anatomy.arrays[name].dtype)
              for name, shape in part.shapes.items()}  # fmt: skip
    found = cuda.train(arrays, data, seed=1, part=part).arrays
    assert {name: array.shape for name, array in found.items()} == dict(part.shapes)


@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize("model", ["convnet", "resnet18", "vgg16"])
def test_the_memory_estimate_is_of_the_right_size(model: str, precision: Any) -> None:
    """It counts what a processor's kernels allocate, which a GPU does not need: 12 to 25 MiB here."""
    one, data = learner(model, "cuda", precision=precision), samples(model)
    blueprint = blueprint_for(one.build, data.x)
    estimate = memory_to_train(blueprint, full_slice(blueprint.anatomy), one.training)
    start = one.init(0)
    occupy_device(one.training)
    before = torch.cuda.memory_allocated()
    peak = reset_peak_of(lambda: one.train(start, data, seed=1)) - before
    assert 0.9 * peak < estimate.total < 1.2 * peak + estimate.kernels


def test_free_memory_counts_what_torch_keeps_for_itself() -> None:
    occupy_device(Training(device="cuda"))
    before, reserved = free_gpu_bytes(), torch.cuda.memory_reserved()
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    during = free_gpu_bytes()
    del tensor
    after = free_gpu_bytes()
    release_gpu_cache()
    assert torch.cuda.memory_reserved() - reserved < 64 << 20
    if before is None or during is None or after is None:
        pytest.skip("the GPU shares the board's memory, which counts already")
    assert before - during >= 32 << 20
    assert after - during >= 32 << 20


FITS_BEFORE_IT_TRAINS = """
import numpy as np
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.precision import occupy_device
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

training = Training(device="cuda", batch=16)
occupy_device(training)
set_up_torch()
one = TorchLearner(build_model("mlp", {}, (3, 8, 8), 5), training, Classification(5))
one.train(one.init(0), Examples(np.ones((16, 3, 8, 8), np.float32), np.arange(16) % 5), seed=0)
"""


def test_what_fits_may_be_asked_before_torch_is_set_up() -> None:
    """In a new process, as a client of AdaptiveFL asks: cuBLAS must be reproducible from its first use."""
    subprocess.run([sys.executable, "-c", FITS_BEFORE_IT_TRAINS], check=True)


def test_the_probe_of_a_users_model_leaves_the_device_alone() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(3600, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(self.conv(x).view(len(x), -1))
            return out

    one = TorchLearner(Viewing, Training(device="cuda", batch=16), Classification(CLASSES))
    assert np.isfinite(one.train(one.init(0), samples("convnet"), seed=1).loss)
