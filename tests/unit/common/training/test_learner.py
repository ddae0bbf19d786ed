"""The training loop: its numbers against torch's own optimiser, its bits, and its edges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import DataUnavailableError, ExperimentError, PayloadError, TrainingDivergedError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification, LearningTask, Regression
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

CLASSES = Classification(3)


def examples(n: int = 50, classes: int = 3) -> Examples:
    rng = np.random.default_rng(5)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, 4)).astype(np.float32) + y[:, None]
    return Examples(x.astype(np.float32), y)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def with_large_layers() -> nn.Module:
    """Two matrices of 1.2 MB, each of which changes alone, between small parameters."""
    return nn.Sequential(nn.Linear(4, 550), nn.Linear(550, 550), nn.Linear(550, 550), nn.ReLU(), nn.Linear(550, 3))


class WithScalars(nn.Module):
    """Parameters of shape (), and two that autograd gives the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.7))
        self.first, self.second = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.factor + (self.first.unsqueeze(0) + self.second.unsqueeze(0))
        return out


class OnlyScalars(nn.Module):
    """No parameter has a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ParameterList([nn.Parameter(torch.tensor(0.1 * place)) for place in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, place] * factor for place, factor in enumerate(self.factors)], dim=1)


class StartsLate(nn.Module):
    """Its second layer has a gradient from the third pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.passes = nn.Linear(4, 3), nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        out: Tensor = self.first(x) if self.passes < 3 else self.first(x) + self.second(x)
        return out


def learner(build: Callable[[], nn.Module] = plain, task: LearningTask = CLASSES, **training: Any) -> TorchLearner:
    return TorchLearner(build, Training(**{"epochs": 2, "batch": 16, **training}), task)


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [
        ("sgd", {}), ("sgd", {"momentum": 0.9}), ("sgd", {"weight_decay": 0.01}),
        ("sgd", {"momentum": 0.5, "weight_decay": 0.1}), ("adam", {}), ("adam", {"weight_decay": 0.1}),
        ("rmsprop", {}), ("rmsprop", {"weight_decay": 0.1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("build", [plain, with_large_layers, WithScalars, OnlyScalars])
def test_same_bits_as_torch_optim(build: Callable[[], nn.Module], optimiser: str, options: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    assert_trains_as(kinds[optimiser], learner(build, epochs=2, lr=0.01, optimiser=optimiser, **options), options)


def test_a_velocity_begins_with_the_first_gradient() -> None:
    options: dict[str, Any] = {"momentum": 0.9}
    assert_trains_as(torch.optim.SGD, learner(StartsLate, epochs=2, lr=0.01, **options), options)


def assert_trains_as(kind: Any, one: TorchLearner, options: dict[str, Any]) -> None:
    """Compare two epochs with those of an optimiser of torch, bit by bit."""
    data, start, module = examples(), one.init(1), one.build()
    module.load_state_dict({name: torch.tensor(a) for name, a in start.items()})
    reference = kind(module.parameters(), lr=0.01, **options)
    shuffler = torch.Generator().manual_seed(9)
    for index in (i for _ in range(2) for i in torch.split(torch.randperm(len(data), generator=shuffler), 16)):
        reference.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(data.x)[index]), torch.tensor(data.y)[index])
        loss.backward()  # type: ignore[no-untyped-call]
        reference.step()
    expected = {name: t.detach().numpy() for name, t in module.state_dict().items()}
    assert same_bits(one.train(start, data, seed=9).arrays, expected)


def test_init_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = learner().init(4)
    torch.manual_seed(2)
    assert same_bits(first, learner().init(4))
    assert not same_bits(first, learner().init(5))


@pytest.mark.parametrize("build", [plain, with_dropout, with_norm])
def test_training_replays_to_the_same_bits(build: Callable[[], nn.Module]) -> None:
    data, one = examples(), learner(build, momentum=0.9)
    start = one.init(0)
    torch.manual_seed(1)
    first = one.train(start, data, seed=3)
    torch.manual_seed(2)
    again = learner(build, momentum=0.9).train(start, data, seed=3)
    assert same_bits(first.arrays, again.arrays)
    assert first.loss == again.loss
    assert not same_bits(first.arrays, one.train(start, data, seed=4).arrays)


def test_dropout_follows_the_seed_even_without_shuffling() -> None:
    data, one = examples(1), learner(with_dropout)
    start = one.init(0)
    assert not same_bits(one.train(start, data, seed=1).arrays, one.train(start, data, seed=2).arrays)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    one = learner(with_dropout)
    one.train(one.init(3), examples(), seed=1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_input_arrays_are_not_touched() -> None:
    one = learner()
    start = one.init(0)
    copies = {name: a.copy() for name, a in start.items()}
    trained = one.train(start, examples(), seed=0)
    assert same_bits(start, copies)
    assert not any(np.shares_memory(trained.arrays[name], start[name]) for name in start)


def test_read_only_memory_maps_are_taken_without_a_warning(tmp_path: Path) -> None:
    one, data = learner(), examples()
    start = one.init(0)
    mapped: dict[str, NDArray[Any]] = {}
    for name, array in start.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    np.save(tmp_path / "x.npy", data.x)
    read_only = Examples(np.load(tmp_path / "x.npy", mmap_mode="r"), data.y)
    assert same_bits(one.train(mapped, read_only, seed=1).arrays, one.train(start, data, seed=1).arrays)
    assert one.evaluate(mapped, read_only) == one.evaluate(start, data)


def test_it_learns_and_counts() -> None:
    progress: list[float] = []
    one = TorchLearner(plain, Training(epochs=3, batch=16, lr=0.1), Classification(3), progress.append)
    data, start = examples(50), one.init(0)
    trained = one.train(start, data, seed=0)
    assert trained.steps == 12
    assert progress == [pytest.approx(step / 12) for step in range(1, 13)]
    assert trained.loss < one.evaluate(start, data)["loss"]
    assert one.evaluate(trained.arrays, data)["accuracy"] > one.evaluate(start, data)["accuracy"]
    assert trained.seconds > 0


def test_evaluation_over_several_batches_is_that_of_the_whole() -> None:
    data, one = examples(1100), learner()
    start = one.init(0)
    module = plain()
    module.load_state_dict({name: torch.tensor(a) for name, a in start.items()})
    output = module(torch.tensor(data.x)).double()
    target = torch.tensor(data.y)
    result = one.evaluate(start, data)
    assert result["loss"] == pytest.approx(nn.functional.cross_entropy(output, target).item(), rel=1e-6)
    assert result["accuracy"] == pytest.approx((output.argmax(1) == target).double().mean().item())


def test_evaluation_uses_running_statistics_and_no_dropout() -> None:
    for build in (with_dropout, with_norm):
        one, data = learner(build), examples()
        start = one.init(0)
        alone = [one.evaluate(start, data.take(np.array([i])))["loss"] for i in range(5)]
        assert one.evaluate(start, data.take(np.arange(5)))["loss"] == pytest.approx(np.mean(alone), rel=1e-5)


def test_penalty_sees_parameters_and_their_fixed_start() -> None:
    seen: list[float] = []

    def penalty(now: Any, start: Any) -> Any:
        assert set(now) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
        assert all(now[name].requires_grad and not start[name].requires_grad for name in now)
        distance = sum(((now[name] - start[name]) ** 2).sum() for name in now)
        seen.append(float(distance.detach()))
        return 5.0 * distance

    one, data = learner(with_norm, lr=0.05, epochs=4), examples()
    start = one.init(0)
    free = one.train(start, data, seed=0).arrays
    held = one.train(start, data, seed=0, penalty=penalty).arrays
    assert seen[0] == 0.0 < seen[-1]
    assert np.abs(held["2.weight"] - start["2.weight"]).sum() < np.abs(free["2.weight"] - start["2.weight"]).sum()


def frozen_first() -> nn.Module:
    module = plain()
    for parameter in module.get_submodule("0").parameters():
        parameter.requires_grad_(False)
    return module


@pytest.mark.parametrize("penalty", [None, lambda now, start: sum((now[name] ** 2).sum() for name in now)])
def test_what_a_model_freezes_is_not_trained(penalty: Any) -> None:
    one, data = learner(frozen_first, weight_decay=0.1), examples()
    start = one.init(0)
    trained = one.train(start, data, seed=0, penalty=penalty).arrays
    assert {name for name in start if not np.array_equal(trained[name], start[name])} == {"2.weight", "2.bias"}
    assert one.parameters == {"2.weight", "2.bias"}


def test_batch_norm_statistics_travel() -> None:
    one = learner(with_norm)
    start = one.init(0)
    trained = one.train(start, examples(), seed=0).arrays
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} <= set(trained)
    assert trained["1.num_batches_tracked"] == 8
    assert trained["1.num_batches_tracked"].shape == ()
    assert not np.array_equal(trained["1.running_mean"], start["1.running_mean"])


@pytest.mark.parametrize(("samples", "batch", "steps"), [(1, 16, 2), (17, 16, 2), (3, 1, 6), (18, 16, 4)])
def test_batch_norm_and_batches_of_one(samples: int, batch: int, steps: int) -> None:
    one = learner(with_norm, batch=batch)
    trained = one.train(one.init(0), examples(samples), seed=0)
    assert trained.steps == steps
    assert all(np.isfinite(a).all() for a in trained.arrays.values())


def test_norm_layers_wake_up_again_after_a_batch_of_one() -> None:
    module = with_norm()
    one = TorchLearner(lambda: module, Training(batch=16), Classification(3))
    one.train(one.init(0), examples(1), seed=0)
    before = {name: a.copy() for name, a in one.init(0).items()}
    after = one.train(before, examples(16), seed=0).arrays
    assert not np.array_equal(after["1.running_mean"], before["1.running_mean"])


def test_without_batch_norm_no_sample_is_left_out() -> None:
    one = learner()
    assert one.train(one.init(0), examples(17), seed=0).steps == 4


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_regression(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 3).reshape(shape)
    one = learner(lambda: nn.Linear(4, 1), Regression(), epochs=40, lr=0.05)
    result = one.evaluate(one.train(one.init(0), Examples(x, y), seed=0).arrays, Examples(x, y))
    assert result["r2"] > 0.99
    assert set(result) == {"r2", "mae", "loss"}


def test_r2_and_its_degenerate_case() -> None:
    one = learner(lambda: nn.Linear(1, 2), Regression(2))
    arrays = {"weight": np.array([[1.0], [0.0]]), "bias": np.array([0.5, 2.0])}
    x, y = np.array([[0.0], [2.0]], np.float32), np.array([[0.0, 2.0], [2.0, 2.0]])
    # first output: 1 - 0.5 / 2; second never changes, so it counts as 0
    assert one.evaluate(arrays, Examples(x, y)) == {"r2": 0.375, "mae": 0.25, "loss": 0.125}


def test_wrong_number_of_outputs_is_no_broadcast() -> None:
    one = learner(lambda: nn.Linear(4, 3), Regression())
    with pytest.raises(ExperimentError, match="3 outputs for a sample, but the data set has 1 target"):
        one.train(one.init(0), Examples(np.ones((4, 4), np.float32), np.ones(4)), seed=0)


def test_divergence_is_an_error() -> None:
    one = learner(lr=1e30, epochs=5)
    with pytest.raises(TrainingDivergedError, match=r"step \d+; try a smaller training.lr"):
        one.train(one.init(0), examples(), seed=0)


def test_divergence_in_the_very_last_step_is_an_error() -> None:
    one = learner(lr=1e38, epochs=1, batch=50)
    data = examples(50)
    with pytest.raises(TrainingDivergedError, match="not finite after 1 steps"):
        one.train(one.init(0), Examples(data.x * 1e3, data.y), seed=0)


def test_a_penalty_that_is_not_finite_is_an_error() -> None:
    one = learner()
    with pytest.raises(TrainingDivergedError, match="the loss became inf in step 1"):
        one.train(one.init(0), examples(), seed=0, penalty=lambda now, start: torch.tensor(float("inf")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a: a.pop("0.bias"), "missing \\['0.bias'\\]"),
        (lambda a: a.update(extra=np.zeros(1)), "unexpected \\['extra'\\]"),
        (lambda a: a.update({"0.bias": np.zeros((8, 1))}), "'0.bias'.*shape \\(8, 1\\)"),
        (lambda a: a.update({"0.bias": np.zeros(1)}), "'0.bias'.*shape \\(1,\\)"),
        (lambda a: a.update({"0.bias": np.array(["x"] * 8)}), "'0.bias' is <U1"),
        (lambda a: a.update({"0.bias": np.zeros(8, complex)}), "'0.bias' is complex"),
    ],
)
def test_arrays_of_another_model(change: Callable[[Any], None], expected: str) -> None:
    one = learner()
    arrays = one.init(0)
    change(arrays)
    for use in (lambda: one.train(arrays, examples(), seed=0), lambda: one.evaluate(arrays, examples())):
        with pytest.raises(PayloadError, match=expected):
            use()


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.zeros(0, int), "no samples"),
        (np.array([0, 3]), "from 0 to 3"),
        (np.array([-1, 2]), "from -1"),
        (np.array([0, 1, 1]), "2 samples have 3"),
    ],
)
def test_data_that_does_not_fit(y: NDArray[Any], expected: str) -> None:
    one = learner()
    data = Examples(np.zeros((min(len(y), 2), 4), np.float32), y)
    with pytest.raises(DataUnavailableError, match=expected):
        one.train(one.init(0), data, seed=0)
    with pytest.raises(DataUnavailableError, match=expected):
        one.evaluate(one.init(0), data)


def test_set_up_makes_torch_strict() -> None:
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    try:
        set_up_torch()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(threads)
