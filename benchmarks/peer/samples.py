"""The samples of the simulation as arrays that the Flower app reads: the same shares that fedquilt's clients have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from peer.fedquilt_side import EXPERIMENT


def export(folder: Path) -> Path:
    """Write ``images.npy``, float32 of shape (100, 600, 1, 28, 28), ``labels.npy`` and those of the test samples.

    Returns:
        The folder.

    Raises:
        DataUnavailableError: Fashion-MNIST is not in the folder of ``FEDQUILT_DATA``.
    """
    from fedquilt_common.experiment_file import load_experiment
    from fedquilt_common.experiment_tools import ExperimentTools

    if (folder / "test_labels.npy").exists():
        return folder
    tools = ExperimentTools(load_experiment(EXPERIMENT), ())
    shares = [tools.training_samples(client) for client in range(tools.experiment.data.clients)]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", np.stack([share.x for share in shares]))
    np.save(folder / "labels.npy", np.stack([share.y for share in shares]))
    np.save(folder / "test_images.npy", tools.dataset.test.x)
    np.save(folder / "test_labels.npy", tools.dataset.test.y)
    return folder


def learning_rate() -> float:
    """Return the learning rate of the experiment, for the other side."""
    from fedquilt_common.experiment_file import load_experiment

    return load_experiment(EXPERIMENT).training.lr
