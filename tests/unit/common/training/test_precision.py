"""Number formats of training: to the bits of torch's own optimiser and scaler, and refused where torch cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import TrainingDivergedError, UnsupportedPrecisionError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training import precision
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.memory_layout import choose_layout, to_tensor
from fedquilt_common.training.precision import LossScale
from fedquilt_common.types import Examples

PRECISIONS = ["fp32", "amp", "fp16", "bf16"]
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SGD = [{}, {"momentum": 0.9}, {"weight_decay": 0.01}, {"momentum": 0.5, "weight_decay": 0.1}]


def flat() -> Examples:
    rng = np.random.default_rng(11)
    y = rng.integers(0, 3, 40)
    return Examples((rng.normal(size=(40, 5, 8)) + y[:, None, None]).astype(np.float32), y)


def words() -> Examples:
    rng = np.random.default_rng(12)
    return Examples(rng.integers(0, 10, (40, 5)), rng.integers(0, 3, 40))


def images() -> Examples:
    rng = np.random.default_rng(13)
    return Examples(rng.normal(size=(40, 3, 6, 6)).astype(np.float32), rng.integers(0, 3, 40))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 3))


def conv(norm: Callable[[], nn.Module] = nn.Identity) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))


class Sequence(nn.Module):
    """One layer over (batch, time, 8), and the last step classified."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        steps: Tensor = result[0] if isinstance(result, tuple) else result
        found: Tensor = self.last(steps[:, -1])
        return found


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Examples]]] = {
    "linear": (linear, flat),
    "conv": (conv, images),
    "batch norm": (lambda: conv(lambda: nn.BatchNorm2d(8)), images),
    "group norm": (lambda: conv(lambda: nn.GroupNorm(2, 8)), images),
    "layer norm": (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(40), nn.Linear(40, 3)), flat),
    "embedding": (lambda: Sequence(nn.Embedding(10, 8), 8), words),
    "attention": (lambda: Sequence(nn.MultiheadAttention(8, 2, batch_first=True), 8), flat),
    "gru": (lambda: Sequence(nn.GRU(8, 6, batch_first=True), 6), flat),
    "lstm": (lambda: Sequence(nn.LSTM(8, 6, batch_first=True), 6), flat),
}


def learner(build: Callable[[], nn.Module] = linear, **training: Any) -> TorchLearner:
    return TorchLearner(build, Training(**{"epochs": 1, "batch": 16, "lr": 0.1, **training}), Classification(3))


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def order_of(data: Examples, seed: int) -> list[Tensor]:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return list(torch.split(order, 16))


def loaded(build: Callable[[], nn.Module], arrays: Any) -> nn.Module:
    module = build()
    module.load_state_dict({name: torch.tensor(a) for name, a in arrays.items()})
    return module.train()


def arrays_of(module: nn.Module) -> dict[str, Any]:
    return {
        n: (t.float() if t.is_floating_point() else t).detach().numpy().copy() for n, t in module.state_dict().items()
    }


@pytest.mark.parametrize("options", SGD)
@pytest.mark.parametrize("half", list(HALVES))
def test_true_half_has_the_bits_of_torch_optim(half: str, options: dict[str, Any]) -> None:
    build, data = MODELS["batch norm"][0], images()
    one = learner(build, precision=half, **options)
    start = one.init(1)
    module = loaded(build, start).to(HALVES[half])
    layout = choose_layout(module, data.x)
    layout.order_weights(module)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, **options, foreach=False)
    for index in order_of(data, 9):
        optimiser.zero_grad()
        output = module(layout.order(to_tensor(data.x))[index].to(HALVES[half]))
        nn.functional.cross_entropy(output.float(), torch.tensor(data.y)[index]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert same_bits(one.train(start, data, seed=9).arrays, arrays_of(module))


@pytest.mark.parametrize("growth", [2, 2000])
@pytest.mark.parametrize("options", SGD)
@pytest.mark.parametrize("model", ["linear", "batch norm"])
def test_amp_has_the_bits_of_torchs_own_scaler_that_repeats_skipped_batches(
    model: str, options: dict[str, Any], growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "GROWTH_AFTER", growth)
    build, data = MODELS[model][0], MODELS[model][1]()
    one = learner(build, precision="amp", **options)
    start = one.init(1)
    module = loaded(build, start)
    layout = choose_layout(module, data.x)
    layout.order_weights(module)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, **options, foreach=False)
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth)
    scales = [scaler.get_scale()]
    for index in order_of(data, 9):
        buffers: Any = None
        while buffers is None or scales[-1] < scales[-2]:  # that is, the scaler has skipped the batch
            optimiser.zero_grad()
            with torch.autocast("cpu", torch.float16):
                output = module(layout.order(to_tensor(data.x))[index])
            loss = nn.functional.cross_entropy(output.float(), torch.tensor(data.y)[index])
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimiser)
            scaler.update()
            scales.append(scaler.get_scale())
            buffers = buffers or {name: buffer.clone() for name, buffer in module.named_buffers()}
            module.load_state_dict(buffers, strict=False)  # a batch counts once in the statistics of the norms
    assert same_bits(one.train(start, data, seed=9).arrays, arrays_of(module))
    if growth == 2:
        assert set(scales) != {65536.0}


@pytest.mark.parametrize("growth", [1, 3, 2000])
def test_the_scale_goes_as_in_torchs_own_scaler(growth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH_AFTER", growth)
    assert torch.amp.GradScaler("cpu").get_growth_interval() == 2000
    scaler, scale = torch.amp.GradScaler("cpu", growth_interval=growth), LossScale()
    weight = nn.Parameter(torch.ones(3))
    optimiser = torch.optim.SGD([weight], lr=1e-9)
    for step in range(300):
        factor = float("inf") if step % 50 in (7, 8, 20) else 0.37
        weight.grad = None
        scaler.scale((weight * 0.37).sum() * (factor / 0.37)).backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        mine = (weight * 0 + 0.37 * scale.value * (factor / 0.37)).detach()
        assert (scale.unscale([mine]) is None) is (factor == float("inf"))
        scaler.step(optimiser)
        scaler.update()
        assert scale.value == scaler.get_scale()


def test_the_scale_stays_a_number_of_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH_AFTER", 1)
    scale = LossScale()
    for _ in range(200):
        assert scale.unscale([torch.zeros(1)]) is not None
    assert scale.value == 2.0**127


@pytest.mark.parametrize("model", [name for name in MODELS if name != "lstm"])
@pytest.mark.parametrize("chosen", PRECISIONS)
def test_what_torch_can_train_on_the_cpu(model: str, chosen: str) -> None:
    build, data = MODELS[model][0], MODELS[model][1]()
    one = learner(build, precision=chosen, momentum=0.9)
    start = one.init(0)
    first, again = (one.train(start, data, seed=3) for _ in range(2))
    assert {a.dtype for a in first.arrays.values() if a.dtype.kind == "f"} == {np.dtype(np.float32)}
    assert {n: a.shape for n, a in first.arrays.items()} == {n: a.shape for n, a in start.items()}
    assert same_bits(first.arrays, again.arrays)
    assert np.isfinite(first.loss)


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_an_lstm_is_trained_or_refused_by_name(chosen: str) -> None:
    """Which of the two depends on the processor: oneDNN's kernels are not the same everywhere."""
    build, data = MODELS["lstm"]
    one = learner(build, precision=chosen)
    refusal = None
    try:
        one.train(one.init(0), data(), seed=0)
    except UnsupportedPrecisionError as error:
        refusal = str(error)
    expected = f"training.precision = {chosen}: torch cannot train 'layer (LSTM)' in it on cpu"
    assert refusal is None or (refusal.startswith(expected) and chosen != "fp32")


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_each_precision_learns(chosen: str) -> None:
    one, data = learner(precision=chosen, epochs=5), flat()
    start = one.init(0)
    trained = one.train(start, data, seed=0)
    assert trained.loss < one.evaluate(start, data)["loss"]
    assert one.evaluate(trained.arrays, data)["accuracy"] > one.evaluate(start, data)["accuracy"]


class Probe(nn.Linear):
    """Notes what it computes in."""

    seen: list[torch.dtype]

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        Probe.seen += [self.weight.dtype, x.dtype, result.dtype]
        return result


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        ("fp32", [torch.float32] * 3),
        ("fp16", [torch.float16] * 3),
        ("bf16", [torch.bfloat16] * 3),
        ("amp", [torch.float32, torch.float32, torch.float16]),
    ],
)
def test_the_layers_compute_in_what_was_asked_for(chosen: str, seen: list[torch.dtype]) -> None:
    given: list[torch.dtype] = []

    def loss(outputs: Any, targets: Any) -> Any:
        given.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets)

    Probe.seen = []
    one = learner(lambda: nn.Sequential(nn.Flatten(), Probe(40, 3)), precision=chosen, batch=40)
    one.train(one.init(0), flat(), seed=0, loss=loss)
    assert Probe.seen[3:] == seen  # before, two samples show the form of the outputs
    assert given == [torch.float32]


def test_a_penalty_works_in_each_precision() -> None:
    for chosen in PRECISIONS:
        one = learner(precision=chosen)
        trained = one.train(
            one.init(0),
            flat(),
            seed=0,
            penalty=lambda now, start: 0.1 * sum(((now[n] - start[n]) ** 2).sum() for n in now),
        )
        assert np.isfinite(trained.loss)


def test_floating_point_numbers_leave_a_model_as_fp32() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.register_buffer("total", torch.tensor(2.0**40 + 1, dtype=torch.float64))

    one = TorchLearner(Counting, Training(), Classification(3))
    data = Examples(np.ones((8, 5), np.float32), np.arange(8) % 3)
    total = one.train(one.init(0), data, seed=0).arrays["total"]
    assert total.dtype == np.float32
    assert float(total) == 2.0**40


class OnlyWide(nn.Module):
    """Fails in half precision, as layers do that torch has no kernel for."""

    def __init__(self, where: str = "forward", message: str = "not implemented for 'Half'") -> None:
        super().__init__()
        self.where, self.message = where, message

    def forward(self, x: Tensor) -> Tensor:
        self.check("forward", x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.check("backward", gradient))  # type: ignore[no-untyped-call]
        return x

    def check(self, where: str, x: Tensor) -> None:
        if where == self.where and x.dtype != torch.float32:
            raise NotImplementedError(self.message)


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(40, 8), nn.Sequential(layer), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("chosen", "advice"),
    [("fp16", "choose fp32, which works here, or try bf16"), ("bf16", "choose fp32, which works here"),
     ("amp", "choose fp32, which works here, or try bf16")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("where", "name"), [("forward", "'2.0 (OnlyWide)'"), ("backward", "the loss or the gradient of Sequential")]
)
def test_what_torch_cannot_do_is_refused_by_name(chosen: str, advice: str, where: str, name: str) -> None:
    told: list[float] = []
    one = TorchLearner(
        lambda: with_layer(OnlyWide(where)), Training(precision=chosen), Classification(3), told.append  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(UnsupportedPrecisionError) as caught:
        one.train(one.init(0), flat(), seed=0)
    assert str(caught.value) == (
        f"training.precision = {chosen}: torch cannot train {name} in it on cpu (not implemented for 'Half'); {advice}"
    )
    assert caught.value.exit_code == 7
    assert told == []


@pytest.mark.parametrize("chosen", ["fp16", "bf16", "amp"])
def test_a_loss_with_features_of_another_model_is_refused_by_name_too(chosen: str) -> None:
    one = replace(learner(lambda: with_layer(OnlyWide()), precision=chosen), samples=lambda: flat().x)
    extract = one.feature_extractor(one.init(1), 1)
    with pytest.raises(UnsupportedPrecisionError, match=r"cannot train '2.0 \(OnlyWide\)' in it"):
        one.train(one.init(0), flat(), seed=0, batch_loss=lambda batch: batch.loss + 0 * extract(batch.samples).sum())


def test_in_fp32_the_same_model_trains() -> None:
    one = learner(lambda: with_layer(OnlyWide()))
    assert one.train(one.init(0), flat(), seed=0).steps == 3


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_a_model_that_is_wrong_in_every_precision_keeps_its_error(chosen: str) -> None:
    one = learner(lambda: with_layer(nn.Linear(9, 8)), precision=chosen)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        one.train(one.init(0), flat(), seed=0)


def test_too_little_memory_is_not_the_precisions_fault() -> None:
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
    one = learner(lambda: with_layer(OnlyWide(message=message)), precision="fp16")
    with pytest.raises(NotImplementedError, match="can't allocate"):
        one.train(one.init(0), flat(), seed=0)


def test_no_hook_stays_behind() -> None:
    module = linear()
    one = TorchLearner(lambda: module, Training(precision="amp"), Classification(3))
    one.train(one.init(0), flat(), seed=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_divergence_in_half_says_what_else_helps() -> None:
    one = learner(precision="fp16", lr=1e4, epochs=20)
    with pytest.raises(TrainingDivergedError, match=r"try a smaller training.lr.*fp16 ends at 65504"):
        one.train(one.init(0), flat(), seed=0)


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop", "adam-keras"])
def test_divergence_in_half_with_a_mean_of_squares_does_not_blame_the_rate(optimiser: str) -> None:
    one = learner(precision="fp16", optimiser=optimiser, lr=0.3, epochs=20)
    with pytest.raises(TrainingDivergedError, match=rf"squares.*{optimiser}.*choose training.precision bf16, amp or"):
        one.train(one.init(0), flat(), seed=0)


@pytest.mark.parametrize(
    ("key", "value", "chosen"), [("lr", 1e6, "fp16"), ("weight_decay", 1e6, "fp16"), ("lr", 1e39, "fp32")]
)
def test_a_setting_beyond_the_number_format_is_named(key: str, value: float, chosen: str) -> None:
    options: dict[str, Any] = {key: value}
    one = learner(precision=chosen, **options)
    words = f"training.{key} = {value:g}: is too large for training.precision = {chosen}; choose a smaller one"
    with pytest.raises(UnsupportedPrecisionError, match=re.escape(words)):
        one.train(one.init(0), flat(), seed=0)


def test_a_task_leaves_torchs_kernels_as_they_were() -> None:
    """Without support for a precision, torch stops using oneDNN for good: later tasks would have other bits."""

    kernels: Any = torch.backends.mkldnn

    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            kernels.enabled = False  # as torch does when oneDNN fails
            return super().forward(x.flatten(1))

    data = flat()
    learner = TorchLearner(lambda: Failing(40, 3), Training(epochs=1, batch=8), Classification(3))
    assert kernels.enabled
    try:
        learner.train(learner.init(1), data, seed=1)
        assert kernels.enabled
    finally:
        kernels.enabled = True
