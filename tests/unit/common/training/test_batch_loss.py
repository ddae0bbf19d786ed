"""A loss that receives features, samples and their positions, and what a learner says of its settings."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedquilt_common.algorithm_api import Batch, TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.privacy.meter import PrivacyMeter
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.submodels.heads import TwoHeads, add_second_head
from fedquilt_common.training import learner as learner_module
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples


class Net(nn.Sequential):
    """A convolution, which wants its channels last, a batch norm, and two linear layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)
        )


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


RNG = np.random.default_rng(4)
DATA = Examples(RNG.normal(size=(11, 1, 4, 4)).astype(np.float32), RNG.integers(0, 3, 11))


def learner(build: Any = plain_net, meter: PrivacyMeter | None = None, **training: Any) -> TorchLearner:
    settings = Training(**{"epochs": 2, "batch": 4, "lr": 0.1, **training})
    return TorchLearner(build, settings, Classification(3), meter=meter)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("build", [plain_net, Net])
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_the_loss_that_it_receives_is_the_one_of_plain_training(build: Any, precision: str) -> None:
    bench = learner(build, precision=precision)
    start = bench.init(1)
    plain = bench.train(start, DATA, seed=3)
    found = bench.train(start, DATA, seed=3, batch_loss=lambda batch: batch.loss)
    assert same(found.arrays, plain.arrays)
    assert found.loss == plain.loss


def test_features_targets_and_samples_belong_to_their_positions() -> None:
    bench, seen = learner(lr=1e-30), list[Batch]()  # nothing changes, so all batches see the first model
    start = bench.init(1)
    expected = bench.features(start, DATA, 1).x

    def note(batch: Batch) -> Any:
        seen.append(batch)
        return batch.loss

    bench.train(start, DATA, seed=3, epochs=1, batch_loss=note)
    assert sorted(int(place) for batch in seen for place in batch.positions) == list(range(11))
    for batch in seen:
        places = batch.positions.numpy()
        np.testing.assert_allclose(batch.features.detach().numpy(), expected[places], rtol=1e-6)
        assert np.array_equal(batch.samples.numpy(), DATA.x[places])
        assert np.array_equal(batch.targets.numpy(), DATA.y[places])
        assert batch.outputs.shape == (len(places), 3)


def test_the_gradient_of_the_features_reaches_the_base_alone() -> None:
    bench = learner()
    start = bench.init(1)
    found = bench.train(start, DATA, seed=3, batch_loss=lambda batch: (batch.features**2).mean()).arrays
    changed = {name for name in found if not np.array_equal(found[name], start[name])}
    assert changed == {"1.weight", "1.bias"}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "amp"])
def test_features_are_fp32_in_every_precision(precision: str) -> None:
    bench, dtypes = learner(precision=precision), set[torch.dtype]()

    def note(batch: Batch) -> Any:
        dtypes.add(batch.features.dtype)
        return batch.loss + 0.1 * (batch.features**2).mean()

    start = bench.init(1)
    found = bench.train(start, DATA, seed=3, batch_loss=note)
    assert dtypes == {torch.float32}
    assert not same(found.arrays, bench.train(start, DATA, seed=3).arrays)


def test_training_without_it_traces_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "watch_features", None)
    bench = learner()
    bench.train(bench.init(1), DATA, seed=3)


def test_private_training_refuses_it() -> None:
    budget = Privacy(epsilon=8.0, delta=1e-3)
    bench = learner(meter=PrivacyMeter(budget, 4, {}, None, functools.partial(open_secret, "07" * 32)))
    start = bench.init(1)
    with pytest.raises(ExperimentError, match=r"a loss of whole batches \(batch_loss\), in which a sample has no"):
        bench.train(start, DATA, seed=3, batch_loss=lambda batch: batch.loss)
    bench.train(start, DATA, seed=3, batch_loss=lambda batch: batch.loss, public=True)


def test_where_there_are_no_features_it_is_refused() -> None:
    with pytest.raises(ValueError, match="leave out watch or batch_loss"):
        TrainingPhase(DATA, watch=DATA, batch_loss=lambda batch: batch.loss)
    bench = learner()
    start = bench.init(1)
    both = add_second_head(start, {name: start[name] for name in bench.head(1)})
    with pytest.raises(ValueError, match="batch_loss needs the features of the whole model"):
        bench.train(both, DATA, seed=3, part=TwoHeads(1), batch_loss=lambda batch: batch.loss)
    flat = learner(lambda: nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()))
    with pytest.raises(ExperimentError, match="has no head"):
        flat.train(flat.init(1), DATA, seed=3, batch_loss=lambda batch: batch.loss)


@pytest.mark.parametrize(("layers", "error"), [(0, ValueError), (-1, ValueError), (9, ExperimentError)])
def test_heads_of_no_layer_or_of_too_many(layers: int, error: type[Exception]) -> None:
    bench = learner()
    start = bench.init(1)
    for use in (
        lambda: bench.head(layers), lambda: bench.features(start, DATA, layers),
        lambda: bench.feature_extractor(start, layers),
    ):  # fmt: skip
        with pytest.raises(error, match=f"head_layers = {layers}"):
            use()


def test_a_learner_says_how_it_trains() -> None:
    bench = learner(momentum=0.5)
    assert (bench.lr, bench.momentum, bench.optimiser) == (0.1, 0.5, "sgd")
    other = bench.with_settings(lr=0.01, optimiser="adam", momentum=0.0)
    assert (other.lr, other.momentum, other.optimiser) == (0.01, 0.0, "adam")
    with pytest.raises(AttributeError):
        bench.lr = 1.0  # type: ignore[misc]
    later = TorchLearner(plain_net, Training(lr=0.1, lr_decay=0.5).at_round(3), Classification(3))
    assert later.lr == 0.025
