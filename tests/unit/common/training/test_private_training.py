"""Private training: sample by sample, with secret noise that the board can repeat, and charged before it starts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.accounting import few_orders
from tests.support.packages import needs
from tests.support.warm import call
from torch import nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError, PrivacyBudgetError
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.training_section import BatchAugment, Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.privacy.accountant import Charge
from fedquilt_common.privacy.meter import PrivacyMeter, PrivateSteps
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

needs("opacus", "needs the extra dp")  # slow to load: its users are imported in the tests
RNG = np.random.default_rng(3)
DATA = Examples(RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 3, 60))
KEY = "07" * 32
NORMED = ("vgg16", "resnet18", "preact-resnet18", "mobilenet-v2", "epic-resnet18")
"""Models whose parameter ``norm`` chooses their norms."""


@pytest.fixture(autouse=True, scope="module")
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


def meter(
    epsilon: float = 8.0, passes: int = 4, key: str = KEY, spent: Mapping[str, Charge] | None = None, **fields: Any
) -> PrivacyMeter:
    budget = Privacy(**{"epsilon": epsilon, "delta": 1e-3, **fields})
    return PrivacyMeter(budget, passes, spent or {}, None, functools.partial(open_secret, key))


def learner(own: PrivacyMeter | None, **training: Any) -> TorchLearner:
    settings = Training(**{"epochs": 2, "batch": 20, "lr": 0.1, **training})
    return TorchLearner(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), settings, Classification(3), meter=own
    )


def train(own: PrivacyMeter | None, seed: int = 1, **arguments: Any) -> dict[str, Any]:
    trainer = learner(own)
    return dict(trainer.train(trainer.init(0), DATA, seed=seed, **arguments).arrays)


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return any((one[name] != other[name]).any() for name in one)


def test_the_noise_depends_on_the_secret_alone() -> None:
    first = train(meter())
    assert not differ(train(meter(), seed=2), first)  # the experiment's seed, which everybody knows, is not in it
    assert differ(train(meter(key="08" * 32)), first)
    assert differ(train(None), first)


def test_two_budgets_never_share_their_noise() -> None:
    """The difference of two results with the same noise in other sizes would tell the gradient."""
    draws = [meter(epsilon).charge(60, 20, 1).generator.random() for epsilon in (8.0, 4.0)]
    assert draws[0] != draws[1]


def test_training_is_charged_as_opacus_counts_it() -> None:
    own = meter(passes=4)
    train(own)
    (charge,) = own.charges.values()
    assert charge.rate == pytest.approx(1 / 3)
    assert charge.steps == 6
    assert 0 < own.epsilon < 8.0
    train(own)
    assert own.epsilon <= 8.0
    with pytest.raises(PrivacyBudgetError, match=r"is used up: 7\.99\d+ of epsilon 8 is spent .* would make it"):
        train(own)
    assert sum(charge.steps for charge in own.charges.values()) == 12


def test_random_crops_are_allowed_because_a_sample_stays_one_gradient() -> None:
    images = Examples(RNG.random((60, 1, 6, 6), dtype=np.float32), DATA.y)
    own, trained = meter(), []
    for augment in (None, BatchAugment(crop=2, flip=True)):
        settings = Training(epochs=2, batch=20, lr=0.1, augment=augment)
        model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3))  # noqa: E731
        trainer = TorchLearner(model, settings, Classification(3), meter=own if augment else meter())
        trained.append(dict(trainer.train(trainer.init(0), images, seed=1).arrays))
    assert differ(*trained)
    assert sum(charge.steps for charge in own.charges.values()) == 6


def test_training_on_public_samples_costs_nothing() -> None:
    own = meter()
    assert not differ(train(own, public=True), train(None))
    assert own.charges == {}


def test_earlier_runs_count() -> None:
    first = meter()
    train(first)
    again = meter(spent=first.charges)
    assert again.epsilon == first.epsilon
    assert again.charge(60, 20, 1).noise > next(iter(first.charges.values())).noise
    with pytest.raises(PrivacyBudgetError, match="is used up"):
        meter(epsilon=first.epsilon, spent=first.charges).charge(60, 20, 1)
    with pytest.raises(PrivacyBudgetError, match=r"the rest is too little .*rdp counts 0\.\d+ for even one step"):
        meter(epsilon=1e-4).charge(60, 20, 1)


def test_a_penalty_needs_no_noise() -> None:
    """Pulled back by a strong penalty, the private training stays near its start although its noise is large."""
    far, near = (
        train(meter(epsilon=0.1), penalty=penalty)
        for penalty in (None, lambda now, start: 4.0 * sum(((now[n] - start[n]) ** 2).sum() for n in now))
    )
    start = learner(None).init(0)

    def distance(arrays: dict[str, Any]) -> float:
        return float(sum(np.abs(arrays[name] - start[name]).sum() for name in arrays))

    assert distance(near) < 0.6 * distance(far)


def test_a_large_batch_is_divided_to_save_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedquilt_common.training.private_gradients import PrivateGradients

    whole, parts = meter(), meter()
    expected, sizes = train(whole), list[int]()
    monkeypatch.setattr("fedquilt_common.privacy.sample_batches.ROW_BYTES", 7 * 4 * 67)  # 7 samples of 67 numbers
    add = PrivateGradients.add

    def count(private: PrivateGradients, loss: torch.Tensor, samples: int) -> None:
        sizes.append(samples)
        add(private, loss, samples)

    monkeypatch.setattr(PrivateGradients, "add", count)
    found = train(parts)
    assert max(sizes) == 7
    assert len(sizes) > 12
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)
    assert parts.charges.keys() == whole.charges.keys()


def test_private_training_does_not_load_the_compiler_of_torch() -> None:
    """It takes 23 MiB, and seconds on a board."""
    assert not call(loads_compiler)


def loads_compiler() -> bool:
    """Train privately, and return whether this process has torch's compiler afterwards."""
    train(meter())
    return "torch._dynamo" in sys.modules


def test_the_noise_has_its_size() -> None:
    from fedquilt_common.training.private_gradients import PrivateGradients

    module = nn.Linear(200, 50).train()
    private = PrivateGradients(
        module, list(module.parameters()), PrivateSteps(3.0, 0.5, 0.5, 2, 10, np.random.default_rng(1))
    )
    with private:
        private.find_used(module(torch.zeros(1, 200)).sum())
        private.finish(None)  # a step that has drawn no samples
    assert module.weight.grad is not None
    assert float(module.weight.grad.std()) == pytest.approx(3.0 * 0.5 / 10, rel=0.05)
    assert float(module.weight.grad.mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("name", "params", "shape", "classes"),
    [
        ("mlp", {}, (8,), 3),
        ("image-cnn", {}, (1, 28, 28), 10),
        ("wisdm-lstm", {}, (200, 6), 4),
        ("resnet18-gn", {"width": 0.15}, (3, 8, 8), 7),
        ("tabular", {}, (20,), 6),
        *((name, {"norm": "group", "width": 0.2}, (3, 16, 16), 5) for name in NORMED),
    ],
)
def test_the_gradients_are_those_of_single_samples(
    name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int
) -> None:
    from fedquilt_common.training.private_gradients import PrivateGradients, make_private

    torch.manual_seed(0)
    module = build_model(name, params, shape, classes)().train().double()  # fp32 would hide small errors
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x, y = torch.randn(3, *shape).double(), torch.tensor([0, 1, 2])

    def gradients(trained: nn.Module, samples: slice) -> dict[str, Any]:
        trained.zero_grad()
        nn.functional.cross_entropy(trained(x[samples]), y[samples]).backward()  # type: ignore[no-untyped-call]
        return {n: p.grad.clone() for n, p in trained.named_parameters() if p.grad is not None}

    singles = [gradients(module, slice(i, i + 1)) for i in range(3)]
    norms = [torch.cat([g.flatten() for g in single.values()]).norm() for single in singles]
    clip = float(sorted(norms)[1])  # clips one of the three
    expected = {
        n: sum(s[n] * min(1.0, clip / (norm + 1e-6)) for s, norm in zip(singles, norms, strict=True)) / 3
        for n in singles[0]
    }
    fixed = make_private(module).double()
    assert set(dict(fixed.named_parameters())) == set(dict(module.named_parameters()))
    private = PrivateGradients(
        fixed, list(fixed.parameters()), PrivateSteps(0.0, clip, 1.0, 1, 3, np.random.default_rng(0))
    )
    with private:
        output = fixed(x)
        private.add(nn.functional.cross_entropy(output[-1] if isinstance(output, tuple) else output, y), 3)
        private.finish(None)
    for parameter_name, parameter in fixed.named_parameters():
        wanted = expected[parameter_name]
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, wanted, rtol=1e-6, atol=1e-9)
    assert not any(hasattr(parameter, "grad_sample") for parameter in fixed.parameters())


@pytest.mark.parametrize(("norm", "kind"), [("batch", "BatchNorm2d"), ("static", "StaticBatchNorm")])
def test_norms_over_a_batch_are_refused(norm: str, kind: str) -> None:
    from fedquilt_common.training.private_gradients import make_private

    with pytest.raises(ExperimentError, match=f"has {kind}, which mixes samples.*model.norm to group"):
        make_private(build_model("resnet18", {"norm": norm}, (3, 8, 8), 10)())


@pytest.mark.parametrize(
    ("samples", "fields", "text"),
    [
        (19, {}, "fewer samples than a batch of 20"),
        (60, {"delta": 0.02}, r"privacy.delta = 0.02 .* below 1/n"),
    ],
)
def test_a_client_with_too_few_samples_is_refused(samples: int, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        meter(**fields).charge(samples, 20, 1)


class Merged(nn.Module):
    """Treats each half of a sample as a sample of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 8), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves: torch.Tensor = self.a(x.reshape(-1, 2))
        output: torch.Tensor = self.b(halves.reshape(len(x), 16))
        return output


class Tied(nn.Module):
    """Uses the weight of a layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.a.weight)


class Counting(nn.Linear):
    """Remembers something of the samples outside its parameters."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(1))


class OwnLoss(nn.Linear):
    def training_loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (Counting, "a trainable layer with buffers"),
        (Merged, "a layer mixes samples"),
        (Tied, "a layer mixes samples"),
        (lambda: OwnLoss(4, 3), "loss of its own"),
    ],
)
def test_models_whose_gradients_cannot_be_bounded_are_refused(build: Any, text: str) -> None:
    trainer = TorchLearner(build, Training(epochs=1, batch=20), Classification(3), meter=meter())
    with pytest.raises(ExperimentError, match=text):
        trainer.train(trainer.init(0), DATA, seed=1)


def test_statistics_of_samples_do_not_leave_the_board() -> None:
    trainer = learner(meter())
    with pytest.raises(ExperimentError, match="stay on its board"):
        trainer.statistics(trainer.init(0), DATA)


def test_a_part_of_the_parameters_trains_privately() -> None:
    own, start = meter(), learner(None).init(0)
    found = train(own, only=["0.weight", "0.bias"])
    assert differ({name: found[name] for name in ("0.weight", "0.bias")}, start)
    assert not differ({name: found[name] for name in ("2.weight", "2.bias")}, start)
    assert differ(found, train(meter(), only=["0.weight"]))


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"sampling": "balanced"}], ids=["precision", "sampling"])
def test_settings_that_cannot_be_private_are_charged_nothing(changes: dict[str, Any]) -> None:
    own = meter()
    trainer = learner(own).with_settings(**changes)
    with pytest.raises(ExperimentError, match=f"{next(iter(changes))} = .*: private training draws each sample alike"):
        trainer.train(trainer.init(0), DATA, seed=1)
    assert own.epsilon == 0


def test_private_phases_take_turns() -> None:
    """Opacus allows one set of hooks for a module, so a phase has its hooks only while it trains."""
    trainer = learner(meter(passes=6))
    start, parts = trainer.init(0), [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    phases = [TrainingPhase(DATA, only=part) for part in parts]
    found = trainer.train_in_turn(start, phases, [0, 1, 0, 1], seed=1).arrays
    for part in parts:
        assert differ({name: found[name] for name in part}, start)


@pytest.mark.parametrize(
    "trained", [["0.weight", "0.bias"], ["2.weight", "2.bias"], ["2.weight"], ["0.bias", "4.weight"]]
)
def test_a_part_of_the_parameters_is_clipped_by_its_own_norm(trained: list[str]) -> None:
    """Frozen layers below, above and between: the clipped gradients of single samples, computed one by one."""
    from fedquilt_common.training.private_gradients import PrivateGradients, make_private

    torch.manual_seed(0)
    module = make_private(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)))
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    chosen = [parameter for name, parameter in module.named_parameters() if name in trained]
    for parameter in module.parameters():
        parameter.requires_grad_(any(parameter is one for one in chosen))
    expected = [torch.zeros_like(parameter) for parameter in chosen]
    for row in range(6):
        found = torch.autograd.grad(nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1]), chosen)
        norm = float(torch.cat([each.flatten() for each in found]).norm())
        expected = [total + each * min(1.0, 0.05 / norm) for total, each in zip(expected, found, strict=True)]
    steps = PrivateSteps(0.0, 0.05, 1.0, 1, 6, np.random.default_rng(0))
    private = PrivateGradients(module, chosen, steps)
    with private:
        private.add(nn.functional.cross_entropy(module(x), y), 6)
        private.finish(None)
    for parameter, total in zip(chosen, expected, strict=True):
        torch.testing.assert_close(parameter.grad, total / 6, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("change", ["samples", "labels", "start", "lr"])
def test_whatever_changes_the_result_changes_the_noise(change: str) -> None:
    """Also what the coordinator and the board's owner change between two runs of one name."""
    drawn = []
    for changed in (False, True):
        own = meter()
        trainer = learner(own, lr=0.2 if changed and change == "lr" else 0.1)
        data = Examples(DATA.x + (changed and change == "samples"), (DATA.y + (changed and change == "labels")) % 3)
        start = trainer.init(int(changed and change == "start"))
        trainer.train(start, data, seed=1)
        drawn.append(next(iter(own.charges)))
    assert drawn[0] != drawn[1]


def test_the_expected_batch_is_never_zero() -> None:
    assert meter(delta=1e-3).charge(49, 1, 1).expected_batch == 1


def test_opacus_receives_contiguous_tensors() -> None:
    """With channels-last images, Opacus computes wrong gradients for the second convolution."""

    def build(channels_last: bool) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))
        net.channels_last = channels_last  # type: ignore[assignment]
        return net

    images = Examples(np.random.default_rng(0).standard_normal((60, 1, 8, 8), dtype=np.float32), np.arange(60) % 3)
    settings = Training(batch=20, lr=0.1)
    found = []
    for wanted in (True, False):
        one = TorchLearner(functools.partial(build, wanted), settings, Classification(3), meter=meter())
        found.append(dict(one.train(one.init(0), images, seed=1).arrays))
    assert not differ(*found)
