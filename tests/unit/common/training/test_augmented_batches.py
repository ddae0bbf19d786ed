"""Training on randomly cropped and mirrored images: drawn again for each batch, the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.training_section import BatchAugment, Training
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.learning_tasks import make_learning_task
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Dataset, Examples

IMAGES = np.random.default_rng(0).random((8, 1, 6, 6), dtype=np.float32)
DATA = Examples(IMAGES, np.arange(8) % 2)
TASK = make_learning_task(Dataset("images", DATA, DATA, 2))


class Watching(nn.Module):
    """A linear model that keeps the batches that it receives in training."""

    def __init__(self, seen: list[NDArray[np.float32]]) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(36, 2), seen

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.detach().numpy().copy())
        result: Tensor = self.linear(x.flatten(1))
        return result


def train(augment: BatchAugment | None, *, public: bool = False, seed: int = 4) -> list[NDArray[np.float32]]:
    """Train two epochs of two batches, and return the batches."""
    seen: list[NDArray[np.float32]] = []
    learner = TorchLearner(lambda: Watching(seen), Training(batch=4, augment=augment), TASK)
    phase = TrainingPhase(DATA, public=public)
    arrays = learner.init(0)
    learner.train_in_turn(arrays, [phase], [0, 0], seed=seed)
    learner.evaluate(arrays, DATA)
    return seen


def is_whole(image: NDArray[np.float32]) -> bool:
    return any(np.array_equal(image, whole) for whole in IMAGES)


def test_each_batch_is_cropped_anew_and_alike_everywhere() -> None:
    batches, again = train(BatchAugment(crop=2)), train(BatchAugment(crop=2))
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))
    other_seed = train(BatchAugment(crop=2), seed=5)
    assert not any(np.array_equal(one, other) for one, other in zip(batches, other_seed, strict=True))
    assert sum(not is_whole(image) for batch in batches for image in batch) > 10


def test_training_on_public_samples_and_without_the_key_sees_whole_images() -> None:
    for batches in (train(None), train(BatchAugment(crop=2, flip=True), public=True)):
        assert all(is_whole(image) for batch in batches for image in batch)


def test_flips_alone_keep_all_pixels() -> None:
    for image in np.concatenate(train(BatchAugment(flip=True))):
        assert is_whole(image) or is_whole(image[..., ::-1])


def test_padding_is_black_before_the_samples_are_normalised() -> None:
    """As ``RandomCrop(padding=...)`` before ``Normalize``: 0 becomes (0 - mean) / std."""
    data = {"set": "digits", "clients": 2, "normalise": {"mean": 0.5, "std": 0.25}}
    experiment = Experiment.model_validate(
        {"name": "x", "data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}
    )
    tools = ExperimentTools(experiment, ())
    part = Examples(np.zeros((2, 1, 6, 6), np.float32), np.arange(2))
    tools.__dict__["raw_dataset"] = Dataset("images", part, part, 2)
    learner = tools.make_learner(experiment.model, experiment.training)
    assert learner.black.shape == (1, 1, 1)
    assert learner.black == pytest.approx(-2.0)
