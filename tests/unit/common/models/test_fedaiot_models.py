"""FedAIoT's models train reproducibly in each precision, or are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.errors import DataUnavailableError, ExperimentError, UnsupportedPrecisionError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification, Regression
from fedquilt_common.models import build_model
from fedquilt_common.models.resnet18_gn import AmplitudeTable
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int]] = {
    "wisdm": ("wisdm-lstm", {}, (6, 200), 12),
    "wisdm accelerometer": ("wisdm-lstm", {}, (3, 200), 12),
    "ut-har": ("resnet18-gn", {"width": 0.1}, (3, 30, 250), 7),
    "widar": ("resnet18-gn", {"width": 0.1}, (22, 20, 20), 9),
    "casas": ("casas-bilstm", {}, (100,), 12),
    "aep": ("aep-mlp", {}, (18,), 0),
    "epic-sounds": ("epic-resnet18", {"width": 0.1}, (1, 128, 60), 44),
}
"""Model, parameters that keep a step short, the shape of a sample of its data set, and the classes."""
SAMPLES = 24


@pytest.fixture(autouse=True)
def reproducible_torch() -> Iterator[None]:
    """As in a board's training process: operations that are not deterministic are errors."""
    mode = torch.get_deterministic_debug_mode()
    set_up_torch()
    yield
    torch.set_deterministic_debug_mode(mode)


def samples(name: str) -> Examples:
    """Samples whose label can be learnt."""
    model, _, shape, classes = CASES[name]
    rng = np.random.default_rng(5)
    if not classes:
        x = rng.normal(size=(SAMPLES, *shape)).astype(np.float32)
        return Examples(x, x[:, :1])
    y = rng.integers(0, 3, SAMPLES)
    if model == "casas-bilstm":
        x = np.where(rng.random((SAMPLES, *shape)) < 0.5, y[:, None] + 1, rng.integers(0, 50, (SAMPLES, *shape)))
        return Examples(x.astype(np.int64), y)
    noise = rng.normal(size=(SAMPLES, *shape))
    return Examples((noise + y.reshape(-1, *[1] * len(shape))).astype(np.float32), y)


def learner(name: str, **training: Any) -> TorchLearner:
    model, params, shape, classes = CASES[name]
    settings = Training(**{"epochs": 1, "batch": 8, "lr": 0.01, **training})
    task = Classification(classes) if classes else Regression(1)
    return TorchLearner(build_model(model, params, shape, classes), settings, task)


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str) -> None:
    one, data, classes = learner(name), samples(name), CASES[name][3]
    (outputs,) = one.predict(one.init(0), data)
    assert outputs.shape == (SAMPLES, classes or 1)
    assert outputs.dtype == np.float32


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_training_lowers_the_loss_and_has_the_same_bits_again(name: str) -> None:
    one, data = learner(name, epochs=6, optimiser="adam", lr=0.003), samples(name)
    start = one.init(0)
    trained = one.train(start, data, seed=3)
    assert same_bits(trained.arrays, one.train(start, data, seed=3).arrays)
    assert not same_bits(trained.arrays, one.train(start, data, seed=4).arrays)
    assert one.evaluate(trained.arrays, data)["loss"] < one.evaluate(start, data)["loss"]


@pytest.mark.parametrize("precision", ["amp", "fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_trains_or_is_refused_by_name(name: str, precision: str) -> None:
    """Only recurrent layers may be refused; which ones depends on the processor's kernels.

    With amp there are several steps, because it skips those whose scaled gradients overflow.
    """
    steps = 8 if precision == "amp" else 1
    one, data = learner(name, precision=precision, epochs=steps), samples(name).take(np.arange(2))
    start = one.init(0)
    refusal = ""
    try:
        trained = one.train(start, data, seed=3)
    except UnsupportedPrecisionError as error:
        refusal = str(error)
    if refusal:
        assert "'lstm (LSTM)'" in refusal
        assert "choose fp32" in refusal
        return
    assert {n: (a.dtype, a.shape) for n, a in trained.arrays.items()} == {
        n: (a.dtype, a.shape) for n, a in start.items()
    }
    assert not same_bits(trained.arrays, start)


def test_the_table_of_amplitudes_has_a_row_for_each_packet() -> None:
    x = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    table = AmplitudeTable()(x)
    assert table.shape == (2, 1, 5, 12)
    assert torch.equal(table[1, 0, 2], x[1, :, :, 2].flatten())


@pytest.mark.parametrize(
    ("stem", "shape", "first"),
    [
        ("auto", (3, 30, 250), (3, 1, 7, 7)),
        ("auto", (22, 20, 20), (22, 3, 7, 7)),
        ("auto", (1, 32, 64), (3, 1, 7, 7)),
        ("profiles", (3, 30, 250), (3, 3, 7, 7)),
        ("amplitudes", (22, 20, 64), (3, 1, 7, 7)),
    ],
)
def test_the_stem_suits_the_samples(stem: str, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    module = build_model("resnet18-gn", {"width": 0.03, "stem": stem}, shape, 4)()
    assert tuple(module.get_parameter("reshape.conv1.weight").shape) == first
    assert module(torch.zeros(2, *shape)).shape == (2, 4)


def test_channels_are_a_multiple_of_the_groups() -> None:
    module = build_model("resnet18-gn", {"hidden": [7, 8, 9, 12], "groups": 4, "width": 0.5}, (22, 20, 20), 4)()
    norms = [part for part in module.modules() if isinstance(part, torch.nn.GroupNorm)]
    assert {norm.num_groups for norm in norms} == {4}
    assert {norm.num_channels for norm in norms} == {32, 4}


def test_padding_is_not_trained() -> None:
    one, data = learner("casas", lr=0.5), samples("casas")
    trained = one.train(one.init(0), data, seed=3).arrays["embedding.weight"]
    assert not trained[0].any()
    assert trained[1].any()


@pytest.mark.parametrize(("name", "params"), [("casas-bilstm", {"vocabulary": 12}), ("transformer", {})])
@pytest.mark.parametrize("number", [-1, 12])
def test_a_number_beyond_the_vocabulary_is_reported(name: str, params: dict[str, Any], number: int) -> None:
    model = build_model(name, params, (5,), 12)()
    assert model(torch.tensor([[0, 1, 11, 2, 3]])).shape == (1, 12)
    with pytest.raises(DataUnavailableError, match=rf"numbers from .*{number}.*the model's vocabulary has 12"):
        model(torch.tensor([[0, 1, number, 2, 3]]))


@pytest.mark.parametrize(
    ("name", "params", "shape", "words"),
    [
        ("wisdm-lstm", {}, (561,), r"are no series \(channels, times\)"),
        ("wisdm-lstm", {"units": 0}, (6, 200), r"model\.units = 0"),
        ("wisdm-lstm", {"hidden": 1.5}, (6, 200), r"model\.hidden = 1.5"),
        ("wisdm-lstm", {"dropout": 1}, (6, 200), r"model\.dropout = 1"),
        ("resnet18-gn", {"stem": "csi"}, (3, 30, 250), r"model\.stem = 'csi': must be auto, amplitudes or profiles"),
        ("resnet18-gn", {"stem": "amplitudes"}, (3, 30, 63), "at least 64 packets of 28 amplitudes"),
        ("resnet18-gn", {"groups": 0}, (3, 30, 250), r"model\.groups = 0"),
        ("resnet18-gn", {"hidden": [8]}, (3, 30, 250), "has 4 stages"),
        ("casas-bilstm", {}, (6, 200), "are no sequences of events"),
        ("casas-bilstm", {"vocabulary": 0}, (20,), r"model\.vocabulary = 0"),
        ("casas-bilstm", {"units": True}, (20,), r"model\.units = True"),
        ("aep-mlp", {"dropout": -0.1}, (18,), r"model\.dropout = -0.1"),
        ("aep-mlp", {"hidden": [0]}, (18,), r"model\.hidden"),
        ("epic-resnet18", {"hidden": [8]}, (1, 128, 400), "has 4 stages"),
    ],
)
def test_what_cannot_be_built_is_named(name: str, params: dict[str, Any], shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        build_model(name, params, shape, 5)()
