"""The learner's seams: sub-models, several exits, other losses, static batch norm, what an epoch leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.aggregation.exact_numbers import to_bits
from fedquilt_common.aggregation.norm_statistics import pool_statistics
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import DataUnavailableError, PayloadError, TrainingDivergedError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification, Regression
from fedquilt_common.models.static_norm import StaticBatchNorm
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import Slice, cut, full_slice
from fedquilt_common.tracing.trace import Blueprint, blueprint_of
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

RNG = np.random.default_rng(7)


def examples(n: int = 50) -> Examples:
    y = RNG.integers(0, 3, n)
    return Examples((RNG.normal(size=(n, 4)) + y[:, None]).astype(np.float32), y)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def with_static_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), StaticBatchNorm(8), nn.ReLU(), nn.Linear(8, 3))


class Exits(nn.Module):
    """Two exits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.early = nn.Linear(4, 3)
        self.late = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.early(x), self.late(torch.relu(self.body(x)))]


def cross_entropy(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets)


def blueprint(build: Callable[[], nn.Module]) -> Blueprint:
    return blueprint_of(build(), (4,))


def learner(build: Callable[[], nn.Module] = plain, **training: Any) -> TorchLearner:
    chosen = Training(**{"epochs": 2, "batch": 16, "lr": 0.1, **training})
    return TorchLearner(build, chosen, Classification(3), blueprint=lambda: blueprint(build))


def half_of(build: Callable[[], nn.Module]) -> Slice:
    return prefix(blueprint(build).anatomy, 0.5, "ceil")


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize("precision", ["fp32", "amp", "fp16", "bf16"])
def test_a_sub_model_is_trained_as_the_narrow_model_would_be(precision: str) -> None:
    one, data, part = learner(precision=precision), examples(), half_of(plain)
    arrays = cut(one.init(0), part)
    assert arrays["0.weight"].shape == (4, 4)
    twin = TorchLearner(narrow, one.training, Classification(3))
    mine, other = one.train(arrays, data, seed=3, part=part), twin.train(arrays, data, seed=3)
    assert same_bits(mine.arrays, other.arrays)
    assert mine.loss == other.loss
    assert one.evaluate(mine.arrays, data, part) == twin.evaluate(other.arrays, data)


def test_the_full_slice_changes_nothing() -> None:
    one, data, whole = learner(), examples(), full_slice(blueprint(plain).anatomy)
    start = one.init(0)
    assert same_bits(one.train(start, data, seed=1, part=whole).arrays, one.train(start, data, seed=1).arrays)
    assert one.evaluate(start, data, whole) == one.evaluate(start, data)


def test_arrays_of_the_whole_model_are_not_those_of_a_part() -> None:
    one = learner()
    with pytest.raises(PayloadError, match=r"'0\.weight'"):
        one.train(one.init(0), examples(), seed=0, part=half_of(plain))


def test_the_last_exit_is_trained_and_evaluated() -> None:
    one, data = learner(Exits), examples()
    start = one.init(0)
    trained = one.train(start, data, seed=0).arrays
    assert same_bits({"a": trained["early.weight"]}, {"a": start["early.weight"]})
    assert not np.array_equal(trained["late.weight"], start["late.weight"])
    spoiled = {**start, "early.weight": start["early.weight"] + 100}
    assert one.evaluate(spoiled, data) == one.evaluate(start, data)


@pytest.mark.parametrize("precision", ["fp32", "amp", "fp16", "bf16"])
def test_a_loss_sees_every_exit_and_is_what_is_reported(precision: str) -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        assert isinstance(outputs, list)
        assert [o.dtype for o in outputs] == [torch.float32] * 2
        assert targets.dtype == torch.int64
        return 7.0 + sum(nn.functional.cross_entropy(output, targets) for output in outputs)

    one, data = learner(Exits, lr=1e-3, precision=precision), examples()
    start = one.init(0)
    trained = one.train(start, data, seed=0, loss=loss)
    assert trained.loss > 7.0
    assert not np.array_equal(trained.arrays["early.weight"], start["early.weight"])


def test_a_loss_in_place_of_the_default_one_has_its_bits() -> None:
    one, data = learner(), examples()
    start = one.init(0)
    given = one.train(start, data, seed=0, loss=cross_entropy)
    assert same_bits(given.arrays, one.train(start, data, seed=0).arrays)


def test_the_penalty_is_added_to_a_loss_and_not_reported() -> None:
    one, data = learner(epochs=1, batch=50), examples()
    start = one.init(0)
    plain_loss = one.train(start, data, seed=0, loss=cross_entropy)
    both = one.train(start, data, seed=0, loss=cross_entropy, penalty=lambda now, start: 5.0 * now["0.bias"].sum())
    assert both.loss == plain_loss.loss
    assert both.arrays["0.bias"] == pytest.approx(plain_loss.arrays["0.bias"] - 0.5, abs=1e-6)


@pytest.mark.parametrize("count", [513, 600])
def test_statistics_are_those_of_the_data(count: int) -> None:
    """The last batch has 1 or 88 samples, those before it 512."""
    one, data = learner(with_static_norm), examples(count)
    start = one.init(0)
    spoiled = {**start, "1.running_mean": np.full(8, np.inf, np.float32), "1.num_batches_tracked": np.array(9)}
    found = one.statistics(spoiled, data)
    assert set(found) == {"1.running_mean", "1.running_var"}
    inputs = data.x @ start["0.weight"].T + start["0.bias"]
    assert found["1.running_mean"] == pytest.approx(inputs.mean(0), abs=1e-5)
    assert found["1.running_var"] == pytest.approx(inputs.var(0), abs=1e-5)
    assert same_bits(found, one.statistics(start, data))


def test_statistics_of_large_samples_take_small_batches() -> None:
    """A board that trains on them in small batches has no memory for 512."""
    seen: list[int] = []

    class First(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x[:, :4]

    one = learner(lambda: nn.Sequential(First(), with_static_norm()))
    one.statistics(one.init(0), Examples(np.zeros((5, 1 << 21), np.float32), np.zeros(5, np.int64)))
    assert seen == [2, 2, 1]


def test_a_norm_with_two_names_is_measured_and_evaluated() -> None:
    class Named(nn.Module):
        """A model whose norm is an attribute beside the sequence that has it."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = StaticBatchNorm(8)
            self.net = nn.Sequential(nn.Linear(4, 8), self.norm, nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(x)
            return result

    one, twin, data = learner(Named), learner(with_static_norm), examples(60)
    start, plain_start = one.init(0), twin.init(0)
    replies = {0: Reply({name: to_bits(x) for name, x in one.statistics(start, data).items()}, 60)}
    ready = {**start, **pool_statistics(replies, blueprint(Named).anatomy)}
    plain_ready = {**plain_start, **twin.statistics(plain_start, data), "1.num_batches_tracked": np.array(1)}
    assert one.evaluate(ready, data.take(np.arange(4))) == twin.evaluate(plain_ready, data.take(np.arange(4)))


def test_statistics_that_are_not_finite_are_refused() -> None:
    one = learner(with_static_norm)
    start = {name: array * np.float32(1e38) for name, array in one.init(0).items() if array.dtype == np.float32}
    with pytest.raises(TrainingDivergedError, match=r"the statistics '1\.running_mean' are not finite; "):
        one.statistics({**one.init(0), **start}, examples(60))


def test_evaluation_uses_collected_statistics() -> None:
    one, data = learner(with_static_norm), examples(60)
    start = one.init(0)
    ready = {**start, **one.statistics(start, data), "1.num_batches_tracked": np.array(1)}
    alone = [one.evaluate(ready, data.take(np.array([i])))["loss"] for i in range(4)]
    assert one.evaluate(ready, data.take(np.arange(4)))["loss"] == pytest.approx(np.mean(alone), rel=1e-4)


def test_statistics_of_a_part_and_of_a_lone_norm() -> None:
    one, part = learner(with_static_norm), half_of(with_static_norm)
    found = one.statistics(cut(one.init(0), part), examples(), part)
    assert {name: a.shape for name, a in found.items()} == {"1.running_mean": (4,), "1.running_var": (4,)}
    lone = TorchLearner(lambda: StaticBatchNorm(4), Training(), Regression(4))
    data = Examples(examples().x, np.zeros((50, 4)))
    assert lone.statistics(lone.init(0), data)["running_mean"] == pytest.approx(data.x.mean(0), abs=1e-5)


def test_without_static_norms_there_are_no_statistics() -> None:
    normal = learner(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    assert normal.statistics(normal.init(0), examples()) == {}
    with pytest.raises(DataUnavailableError, match="no samples"):
        normal.statistics(normal.init(0), examples(0))


@pytest.mark.parametrize(
    ("samples", "steps", "kept"), [(50, 3, 4), (48, 3, 3), (16, 1, 1), (15, 1, 1), (1, 1, 1), (17, 1, 2)]
)
def test_drop_last(samples: int, steps: int, kept: int) -> None:
    data = examples(samples)
    for drop, expected in ((True, steps), (False, kept)):
        told: list[float] = []
        one = TorchLearner(plain, Training(batch=16, epochs=2, drop_last=drop), Classification(3), told.append)
        assert one.train(one.init(0), data, seed=0).steps == 2 * expected
        assert told[-1] == 1.0
