"""Functions that ``torch.fx`` keeps as one operation, as torchvision wraps some of its own."""

from __future__ import annotations

import torch
from tests.support import lookalikes
from torch import Tensor, nn


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Drop whole samples."""
    return lookalikes.stochastic_depth(x, p, mode, training)


def shifted_window_attention(x: Tensor) -> Tensor:
    """Stand for an operation about which nothing is known."""
    return x


torch.fx.wrap("stochastic_depth")
torch.fx.wrap("shifted_window_attention")


class Wrapping(nn.Module):
    """A layer that calls one of them."""

    def __init__(self, *, windows: bool) -> None:
        super().__init__()
        self.a, self.fc, self.windows = nn.Linear(6, 8), nn.Linear(8, 5), windows

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        x = shifted_window_attention(x) if self.windows else x + stochastic_depth(x, 0.2, "row", self.training)
        out: Tensor = self.fc(x.view(-1, 8))
        return out
