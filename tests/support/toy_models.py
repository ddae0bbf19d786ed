"""A small detector, to show what a model for detection must have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PLACES = torch.tensor([[x, y, 0.5, 0.5] for y in (0.25, 0.75) for x in (0.25, 0.75)])
"""The quadrants as boxes."""


class Quadrants(nn.Module):
    """Looks for at most one object of each class in each quadrant of an image of 8 x 8 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(),
            nn.Conv2d(16, classes, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, classes, 4) in training, else candidates of shape (n, 4, 4 + classes)."""
        logits: Tensor = self.layers(x).flatten(2)
        if self.training:
            return logits
        return torch.cat([PLACES.expand(len(x), -1, -1), logits.transpose(1, 2).sigmoid()], dim=2)

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross entropy of each class in each quadrant."""
        wanted = torch.zeros_like(outputs)
        image, place = torch.nonzero(targets[..., 0] >= 0, as_tuple=True)
        kind, x, y = targets[image, place, :3].unbind(dim=1)
        wanted[image, kind.long(), (x > 0.5).long() + 2 * (y > 0.5).long()] = 1.0
        return functional.binary_cross_entropy_with_logits(outputs, wanted)


def detector(input_shape: tuple[int, ...], classes: int) -> Any:
    """Build the detector."""
    return Quadrants(classes)
