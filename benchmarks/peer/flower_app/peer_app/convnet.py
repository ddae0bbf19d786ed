"""fedquilt's ConvNet for Fashion-MNIST, and one epoch of plain SGD in PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


def build() -> nn.Sequential:
    """Return the network of ``fedquilt_common/models/convnet.py`` for images of 1 x 28 x 28 and ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip


def load_client(folder: Path, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images, float32 of shape (n, 1, 28, 28), and its labels, int64 of shape (n,)."""
    images, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
    return torch.from_numpy(np.array(images[client])), torch.from_numpy(np.array(labels[client]))


def train_epoch(weights: Weights, images: Tensor, labels: Tensor, lr: float, batch: int) -> Weights:
    """Train one epoch on one thread, as a fedquilt agent does, and return the weights."""
    torch.set_num_threads(1)
    network = build()
    network.load_state_dict(weights)
    optimiser, loss = torch.optim.SGD(network.parameters(), lr=lr), nn.CrossEntropyLoss()
    for rows in torch.randperm(len(labels)).split(batch):
        optimiser.zero_grad()
        loss(network(images[rows]), labels[rows]).backward()
        optimiser.step()
    return network.state_dict()


def evaluate(weights: Weights, folder: Path) -> float:
    """Return the accuracy on the test images."""
    network = build().eval()
    network.load_state_dict(weights)
    images, labels = (torch.from_numpy(np.load(folder / f"test_{name}.npy")) for name in ("images", "labels"))
    with torch.inference_mode():
        right = sum(
            int((network(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500), strict=True)
        )
    return right / len(labels)
