"""Training in phases: frozen arrays, an optimiser for each phase, one after the other or in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.precision import Arithmetic
from fedquilt_common.training.sgd_loop import SgdLoop
from fedquilt_common.types import Examples


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def learner(**training: Any) -> TorchLearner:
    return TorchLearner(
        net, Training(**{"epochs": 2, "batch": 4, "lr": 0.1, "momentum": 0.9, **training}), Classification(3)
    )


def data(seed: int, count: int = 4) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(rng.normal(size=(count, 4)).astype(np.float32), rng.integers(0, 3, count))


HEAD, BASE = ("2.weight", "2.bias"), ("0.weight", "0.bias")


def test_arrays_that_are_not_trained_keep_their_bits() -> None:
    bench = learner()
    start = bench.init(1)
    for only, still in ((HEAD, BASE), (BASE, HEAD)):
        found = bench.train(start, data(0), seed=3, only=only).arrays
        assert all(np.array_equal(found[name], start[name]) for name in still)
        assert not any(np.array_equal(found[name], start[name]) for name in only)


def test_epochs_of_a_call() -> None:
    bench = learner()
    start = bench.init(1)
    assert bench.train(start, data(0, 9), seed=3).steps == 2 * 3
    assert bench.train(start, data(0, 9), seed=3, epochs=5).steps == 5 * 3
    with pytest.raises(ExperimentError, match="epochs = 0: an algorithm must train for 1 epoch or more"):
        bench.train(start, data(0, 9), seed=3, epochs=0)


@pytest.mark.parametrize(
    ("phases", "schedule", "text"),
    [
        (1, [], "one epoch or more"), (0, [], "one epoch or more"), (0, [0], "positions in the 0 phases"),
        (1, [1], "schedule has 1: its numbers are positions in the 1 phases"), (2, [0, -1], "schedule has -1"),
    ],
)  # fmt: skip
def test_a_schedule_of_phases_that_are_not_there(phases: int, schedule: list[int], text: str) -> None:
    """With -1, the last phase would train, and a private one would not be charged."""
    bench = learner()
    with pytest.raises(ValueError, match=text):
        bench.train_in_turn(bench.init(1), [TrainingPhase(data(0))] * phases, schedule, seed=3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learning_rate": 0.1}, "with_settings: learning_rate: unknown key"),
        ({"lr": -1}, "with_settings: lr: "),
        ({"batch": 0}, "with_settings: batch: "),
        ({"optimiser": "adamw"}, "with_settings: optimiser: "),
        ({"precision": "fp8"}, "with_settings: precision: "),
    ],
)
def test_settings_that_the_section_does_not_accept(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        learner().with_settings(**changes)


def test_one_phase_is_plain_training() -> None:
    bench = learner()
    start = bench.init(1)
    plain = bench.train(start, data(0, 9), seed=3).arrays
    turned = bench.train_in_turn(start, [TrainingPhase(data(0, 9)), TrainingPhase(data(1))], [0, 0], seed=3).arrays
    assert all(np.array_equal(plain[name], turned[name]) for name in plain)


@pytest.mark.parametrize("schedule", [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0]])
def test_each_phase_has_torchs_own_optimiser(schedule: list[int]) -> None:
    """Full batches, so that the order of samples does not matter: two torch optimisers, each with its momentum."""
    bench, samples = learner(batch=8), [data(0, 8), data(1, 8)]
    start = bench.init(1)
    phases = [TrainingPhase(samples[0], only=(*BASE, *HEAD)), TrainingPhase(samples[1], only=HEAD)]
    found = bench.train_in_turn(start, phases, schedule, seed=3).arrays
    module = net()
    module.load_state_dict({name: torch.tensor(x) for name, x in start.items()})
    known = dict(module.named_parameters())
    optimisers = [torch.optim.SGD([known[name] for name in names], lr=0.1, momentum=0.9)
                  for names in ((*BASE, *HEAD), HEAD)]  # fmt: skip
    for number in schedule:
        module.zero_grad()
        x, y = torch.tensor(samples[number].x), torch.tensor(samples[number].y)
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimisers[number].step()
    for name, expected in module.state_dict().items():
        np.testing.assert_allclose(found[name], expected.numpy(), atol=1e-6)


def test_a_penalty_of_one_phase_is_not_the_others() -> None:
    bench = learner()
    start = bench.init(1)

    def strong(now: Any, start: Any) -> Any:
        return 4.0 * sum(((now[name] - start[name]) ** 2).sum() for name in now)

    def moved(*phases: TrainingPhase) -> float:
        found = bench.train_in_turn(start, phases, [0, 1], seed=3).arrays
        return sum(float(((found[name] - start[name]) ** 2).sum()) for name in found)

    free, held = TrainingPhase(data(0, 40)), TrainingPhase(data(0, 40), penalty=strong)
    assert moved(held, held) < moved(free, held) < moved(free, free)


def test_progress_counts_all_phases() -> None:
    told: list[float] = []
    bench = TorchLearner(net, Training(batch=4), Classification(3), told.append)
    bench.train_in_turn(bench.init(0), [TrainingPhase(data(0, 8)), TrainingPhase(data(1, 4))], [0, 1, 1], seed=0)
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_the_loss_is_that_of_the_last_epoch() -> None:
    bench = learner(lr=1e-9, momentum=0.0)
    start = bench.init(0)
    losses = [bench.evaluate(start, data(seed, 8))["loss"] for seed in (0, 1)]
    phases = [TrainingPhase(data(0, 8)), TrainingPhase(data(1, 8))]
    for schedule in ([0, 1], [1, 0]):
        found = bench.train_in_turn(start, phases, schedule, seed=0).loss
        assert found == pytest.approx(losses[schedule[-1]], rel=1e-5)


def test_names_of_parameters_and_buffers() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))

    bench = TorchLearner(normed, Training(), Classification(3))
    assert bench.parameters == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert bench.init(0).keys() - bench.parameters == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_images_are_learnt_from_alike_however_they_lie_in_memory() -> None:
    """The learner lays images out with their channels last; what it computes is the same but for rounding."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))

    bench = TorchLearner(net, Training(batch=8, lr=0.1), Classification(3))
    rng = np.random.default_rng(0)
    images: NDArray[np.float32] = rng.random((8, 3, 8, 8), dtype=np.float32)
    samples, start = Examples(images, rng.integers(0, 3, 8)), bench.init(0)
    found = bench.train(start, samples, seed=0).arrays
    module = bench.build()
    module.load_state_dict({name: torch.tensor(x) for name, x in start.items()})
    functional.cross_entropy(module(torch.tensor(images)), torch.tensor(samples.y)).backward()  # type: ignore[no-untyped-call]
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[name], (parameter - 0.1 * parameter.grad).detach().numpy(), atol=1e-6)


def test_the_rate_falls_along_half_a_cosine() -> None:
    bench, samples = learner(batch=8, momentum=0.0), data(0, 8)
    start = bench.init(1)
    found = bench.train_in_turn(start, [TrainingPhase(samples, anneal=True)], [0] * 6, seed=3).arrays
    module = net()
    module.load_state_dict({name: torch.tensor(x) for name, x in start.items()})
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=6)
    for _ in range(6):
        module.zero_grad()
        functional.cross_entropy(module(torch.tensor(samples.x)), torch.tensor(samples.y)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    for name, expected in module.state_dict().items():
        np.testing.assert_allclose(found[name], expected.numpy(), atol=1e-6)


class RecordsBatches(nn.Module):
    """Records how many samples each forward pass of evaluation has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.seen = list[int]()

    def forward(self, x: torch.Tensor) -> Any:
        if not self.training:
            self.seen.append(len(x))
        return self.linear(x)


@pytest.mark.parametrize(("count", "batches"), [(64, [64]), (150, [64, 64, 22])])
def test_what_is_watched_is_evaluated_in_batches(count: int, batches: list[int]) -> None:
    """The loss is the mean over the samples; that of a single batch keeps the bits of its forward pass."""
    module, watched = RecordsBatches(), data(5, count)
    loop = SgdLoop(module, Arithmetic("cpu", "fp32"), Training(epochs=1), functional.cross_entropy, torch.from_numpy)
    phase = TrainingPhase(data(0), watch=watched, patience=9)
    found = loop._start_phase(0, phase, 1, dict(module.named_parameters()), {}, 1)._watched_loss(watched)
    assert module.seen == batches
    with torch.inference_mode():
        expected = float(functional.cross_entropy(module(torch.tensor(watched.x)), torch.tensor(watched.y)))
    assert found == (expected if len(batches) == 1 else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize("patience", [1, 3])
def test_training_stops_when_what_is_watched_gets_no_better_and_keeps_the_best(patience: int) -> None:
    """What is watched has the opposite labels, so that it gets worse from some epoch on."""
    bench, samples = learner(batch=8, lr=0.5), data(0, 8)
    start, watched = bench.init(1), Examples(samples.x, (samples.y + 1) % 3)
    losses = []
    for epochs in range(1, 13):
        arrays = bench.train(start, samples, seed=3, epochs=epochs).arrays
        losses.append(bench.evaluate(arrays, watched)["loss"])
    best = next(n for n in range(12) if min(losses[n + 1 : n + 1 + patience]) >= losses[n])
    assert best + patience < 11
    phase = TrainingPhase(samples, watch=watched, patience=patience)
    found = bench.train_in_turn(start, [phase], [0] * 12, seed=3)
    assert found.steps == best + 1 + patience
    expected = bench.train(start, samples, seed=3, epochs=best + 1).arrays
    assert all(np.array_equal(found.arrays[name], expected[name]) for name in expected)


def test_training_stops_when_the_loss_on_what_is_watched_stays_the_same() -> None:
    bench = learner(batch=4, lr=1e-30)
    phase = TrainingPhase(data(0), watch=data(1), patience=2)
    assert bench.train_in_turn(bench.init(1), [phase], [0] * 9, seed=3).steps == 1 + 2
