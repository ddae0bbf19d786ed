"""Where a model's head begins, and the model with a second one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.submodels.heads import Head, TwoHeads, add_second_head, pick_arrays, split_second_head
from fedquilt_common.tracing.building import build_on_meta
from fedquilt_common.tracing.heads import find_heads
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.module_arrays import to_arrays
from fedquilt_common.types import Examples

IMAGE = (3, 32, 32)


def layers(*names: str) -> frozenset[str]:
    return frozenset(f"{name}.{kind}" for name in names for kind in ("weight", "bias"))


def heads(module: nn.Module) -> tuple[frozenset[str], ...]:
    return tuple(head.names for head in find_heads(module))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("convnet", [layers("fc3"), layers("fc2", "fc3"), layers("fc1", "fc2", "fc3")]),
        ("mlp", [layers("fc2")]),
        ("vgg16", [layers("fc2"), layers("fc1", "fc2"), layers("fc0", "fc1", "fc2")]),
        ("resnet18", [layers("fc")]),
        ("mobilenet-v2", [layers("fc")]),
    ],
)
def test_heads_of_our_models(name: str, expected: list[frozenset[str]]) -> None:
    assert list(heads(build_on_meta(build_model(name, {}, IMAGE, 10)))) == expected


@pytest.mark.parametrize(
    ("name", "params", "asked", "reason"),
    [
        ("convnet", {}, 4, "head_layers = 4: at most the last 3 linear layers of this model can be its head"),
        ("mlp", {}, 2, "the last 1 linear layers of this model can be its head, because a base must be left"),
        ("mlp", {"hidden": []}, 1, "this model has no head"),
        ("mlp", {"hidden": [8, 8], "exits": [0]}, 1, "this model has no head"),
    ],
)
def test_heads_that_there_are_not(name: str, params: dict[str, Any], asked: int, reason: str) -> None:
    bench = TorchLearner(build_model(name, params, IMAGE, 10), Training(), Classification(10))
    with pytest.raises(ExperimentError, match=re.escape(reason)):
        bench.head(asked)


class Shortcut(nn.Module):
    """The second-last linear layer's input is needed once more after it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.side, self.mix = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.base(x))
        found: Tensor = self.last(functional.relu(self.mix(self.side(x)) + x))
        return found


class Tied(nn.Module):
    """The classifier is the first layer once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(functional.relu(self.first(x)))
        return found


class Dropping(nn.Module):
    """Functional dropout and a norm within the head; a parameter of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.hidden, self.norm, self.last = (
            nn.Linear(6, 8),
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 3),
        )
        self.shift = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.hidden(torch.tanh(self.base(x))))
        found: Tensor = self.last(functional.dropout(x, 0.5, self.training)) + self.shift
        return found


def test_what_can_be_no_head_is_none() -> None:
    assert heads(Shortcut()) == (layers("last"),)  # before `mix`, two values would have to be handed over
    assert heads(Tied()) == ()


def test_a_head_has_all_that_follows_its_first_layer() -> None:
    norm = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert heads(Dropping()) == (
        layers("last") | {"shift"}, layers("last", "hidden") | norm | {"shift"},
    )  # fmt: skip


class Renamed(Dropping):
    """The last layer is an entry of a list and an attribute of a layer in it; forward uses the first name only."""

    def __init__(self) -> None:
        super().__init__()
        holder = nn.Sequential(nn.Linear(3, 3))
        holder.weight = self.last.weight
        self.parts = nn.ModuleList([holder, self.last])
        self.register_buffer("mean", self.norm.running_mean)


def test_a_head_has_its_arrays_under_all_their_names() -> None:
    second = {"parts.0.weight", "parts.1.weight", "parts.1.bias"}
    norm = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    expected = layers("last") | {"shift"} | second
    assert heads(Renamed()) == (expected, expected | layers("hidden") | norm | {"mean"})


def learner(build: Callable[[], nn.Module], **training: Any) -> TorchLearner:
    return TorchLearner(build, Training(**{"epochs": 1, "batch": 4, "lr": 0.1, **training}), Classification(3))


def data(count: int = 10, width: int = 6) -> Examples:
    rng = np.random.default_rng(2)
    return Examples(rng.normal(size=(count, width)).astype(np.float32), rng.integers(0, 3, count))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("build", [Dropping, Renamed])
def test_both_heads_answer_on_the_same_features(build: Callable[[], nn.Module], depth: int) -> None:
    bench = learner(build)
    first, other = (to_arrays(build()) for _ in range(2))
    names = heads(build())[depth - 1]
    arranged = add_second_head(first, pick_arrays(other, names))
    one, two = bench.predict(arranged, data(), TwoHeads(depth))
    np.testing.assert_array_equal(one, bench.predict(first, data())[0])
    np.testing.assert_allclose(two, bench.predict({**first, **pick_arrays(other, names)}, data())[0], atol=1e-6)
    features = bench.features(first, data(), depth)
    assert features.x.shape == (10, 8)
    np.testing.assert_allclose(bench.predict(pick_arrays(first, names), features, Head(depth))[0], one, atol=1e-6)
    assert [x.keys() for x in split_second_head(arranged)] == [first.keys(), names]
    trained = bench.train(arranged, data(), seed=1, loss=sum_of_losses, part=TwoHeads(depth)).arrays
    assert trained.keys() == arranged.keys()


def test_a_detached_head_changes_nothing_but_itself() -> None:
    bench, first = learner(Dropping, epochs=3), to_arrays(Dropping())
    names = heads(Dropping())[0]

    def second_only(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs[1], targets)

    def trained(*, detached: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        arranged, part = add_second_head(first, pick_arrays(first, names)), TwoHeads(1, detached)
        return split_second_head(bench.train(arranged, data(), seed=1, loss=second_only, part=part).arrays)

    model, own = trained(detached=True)
    moved = {name for name in model if not np.array_equal(model[name], first[name]) and not name.startswith("norm.")}
    assert moved == set()  # a norm's statistics follow the data, whoever learns
    assert all(not np.array_equal(own[name], first[name]) for name in names)
    model, _ = trained(detached=False)
    assert not np.array_equal(model["base.weight"], first["base.weight"])


def test_dropout_in_the_head_is_off_when_it_is_tested() -> None:
    bench, first = learner(Dropping), to_arrays(Dropping())
    names = heads(Dropping())[1]
    arranged = add_second_head(first, pick_arrays(first, names))
    one, two = bench.predict(arranged, data(), TwoHeads(2))
    np.testing.assert_array_equal(one, two)
    assert (bench.predict(arranged, data(), TwoHeads(2))[1] == two).all()


def test_a_sequential_model_has_two_heads_too() -> None:
    bench = TorchLearner(build_model("convnet", {}, (1, 28, 28), 10), Training(batch=4), Classification(10))
    arrays = bench.init(1)
    rng = np.random.default_rng(0)
    images = Examples(rng.random((6, 1, 28, 28), np.float32), rng.integers(0, 10, 6))
    names = bench.head(2)
    one, two = bench.predict(add_second_head(arrays, pick_arrays(arrays, names)), images, TwoHeads(2))
    np.testing.assert_array_equal(one, two)
    assert bench.features(arrays, images, 3).x.shape == (6, 64 * 4 * 4)
    assert bench.features(arrays, images, 2).x.shape == (6, 384)


class Bending(nn.Module):
    """A base that branches on its input, with an einsum; the head is a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.hidden, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.base(x))
        if float(x.detach().sum()) > 1e6:
            x = -x
        x = torch.einsum("ni,ij->nj", x, self.mix)
        x = functional.dropout(torch.relu(self.hidden(x)), 0.5, self.training)
        out: Tensor = self.last(x.view(x.size(0), -1)) * self.scale.exp() + self.shift
        return out


class Encoding(nn.Module):
    """torch's transformer encoder under a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), 2, enable_nested_tensor=False
        )  # fmt: skip
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 1, 6)
        assert x.shape[2] == 6
        out: Tensor = self.last(self.encoder(x).mean(1))
        return out


class Recurring(nn.Module):
    """A loop that counts on numbers, around an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int((x[0, 0] > -1e6).item()) + 1):
            features = self.lstm(x[:, None])[0][:, -1]
        out: Tensor = self.last(features)
        return out


class BentShortcut(Bending):
    """The head needs another result of the base."""

    def forward(self, x: Tensor) -> Tensor:
        base = self.norm(self.base(x)) if float(x.detach().sum()) < 1e6 else self.base(x)
        out: Tensor = self.last(torch.relu(self.hidden(base))) + base[:, :3]
        return out


class BentConstant(Bending):
    """The head creates a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.tensor([1.0, 2.0, 3.0])


class BentTied(Bending):
    """A layer of the base is used once more in the head."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.base(x)) if float(x.detach().sum()) < 1e6 else self.base(x)
        out: Tensor = self.last(torch.relu(self.hidden(x)))
        return out


class BentRenamed(Bending):
    """The last layer has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.last


BENT: dict[type[nn.Module], list[frozenset[str]]] = {
    Bending: [layers("last") | {"scale", "shift"}, layers("last", "hidden") | {"scale", "shift"}],
    Encoding: [layers("last")],
    Recurring: [layers("last")],
    BentShortcut: [],
    BentConstant: [],
    BentTied: [layers("last")],
    BentRenamed: [
        layers("last", "other") | {"scale", "shift"},
        layers("last", "other", "hidden") | {"scale", "shift"},
    ],
}


@pytest.mark.parametrize("build", BENT)
def test_only_the_head_must_be_traceable(build: type[nn.Module]) -> None:
    module, sample = build(), torch.randn(4, 6)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    found = find_heads(module, sample)
    assert [head.names for head in found] == BENT[build]
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


def test_the_error_about_a_head_names_the_condition_for_constants() -> None:
    bench = replace(learner(BentConstant), samples=lambda: data().x)
    with pytest.raises(ExperimentError, match="must have its constants as buffers"):
        bench.head(1)


@pytest.mark.parametrize(
    ("build", "depth"), [(Bending, 1), (Bending, 2), (Encoding, 1), (Recurring, 1), (BentRenamed, 1)]
)
def test_a_model_with_an_untraceable_base_has_two_heads(build: type[nn.Module], depth: int) -> None:
    bench = replace(learner(build, epochs=2), samples=lambda: data().x)
    first, other = (to_arrays(build()) for _ in range(2))
    names = bench.head(depth)
    arranged = add_second_head(first, pick_arrays(other, names))
    one, two = bench.predict(arranged, data(), TwoHeads(depth))
    np.testing.assert_array_equal(one, bench.predict(first, data())[0])
    np.testing.assert_allclose(two, bench.predict({**first, **pick_arrays(other, names)}, data())[0], atol=1e-6)
    features = bench.features(first, data(), depth)
    np.testing.assert_allclose(bench.predict(pick_arrays(first, names), features, Head(depth))[0], one, atol=1e-6)
    trained = bench.train(arranged, data(), seed=1, loss=sum_of_losses, part=TwoHeads(depth)).arrays
    assert all(not np.array_equal(trained[f"second_head.{name}"], other[name]) for name in names if name != "shift")
    again = bench.train(arranged, data(), seed=1, loss=sum_of_losses, part=TwoHeads(depth)).arrays
    assert all(np.array_equal(trained[name], again[name]) for name in trained)


def sum_of_losses(outputs: Any, targets: Any) -> Any:
    return functional.cross_entropy(outputs[0], targets) + functional.cross_entropy(outputs[1], targets)
