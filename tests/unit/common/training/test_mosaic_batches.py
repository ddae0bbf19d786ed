"""Training on mosaics: drawn anew for each batch, the same on every machine."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.training.precision import Arithmetic
from fedquilt_common.training.sgd_loop import SgdLoop
from fedquilt_common.types import Examples


def train(mosaic: float) -> list[NDArray[np.float32]]:
    """Train two epochs of two batches, and return the labels of each batch."""
    rng = np.random.default_rng(0)
    x = rng.random((6, 1, 16, 16), dtype=np.float32)
    y = np.tile(np.array([-1, 0.5, 0.5, 0.5, 0.5], dtype=np.float32), (6, 4, 1))
    y[:, 0, 0] = np.arange(6)
    module, seen = nn.Sequential(nn.Flatten(), nn.Linear(256, 1)), list[NDArray[np.float32]]()

    def targets(labels: NDArray[np.float32]) -> Tensor:
        seen.append(labels)
        return torch.zeros(len(labels), 1)

    loop = SgdLoop(module, Arithmetic("cpu", "fp32"), Training(batch=3, mosaic=mosaic), nn.MSELoss(), targets)
    loop.run([TrainingPhase(Examples(x, y))], [0, 0], seed=4)
    return seen


def test_batches_without_mosaics_have_whole_images() -> None:
    batches = train(0.0)
    assert [sorted(b[0, 0] for batch in pair for b in batch) for pair in (batches[:2], batches[2:])] == [
        [*range(6)]
    ] * 2
    assert all((batch[:, :, 1:] == 0.5).all() for batch in batches)


def test_mosaics_are_drawn_anew_and_alike_everywhere() -> None:
    batches, again = train(1.0), train(1.0)
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))
    assert len({batch.tobytes() for batch in batches}) == 4
    assert any(len({*image[:, 0]} - {-1}) > 1 for image in batches[0])  # boxes of several images
    assert batches[0].shape == (3, 4, 5)
