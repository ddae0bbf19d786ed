"""Classes of a user's own that only give torch's layers other arguments, and one that changes a layer."""

from __future__ import annotations

from torch import Tensor, nn


class Norm(nn.BatchNorm2d):
    """A norm with other constants, as published models have it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3, momentum=0.01)


class FirstNorm(Norm):
    """A norm that begins with zeros."""

    def reset_parameters(self) -> None:
        """Set the weights to zero."""
        super().reset_parameters()
        nn.init.zeros_(self.weight)


class Recurrence(nn.GRU):
    """A recurrent layer whose samples come first."""

    def __init__(self, inside: int, hidden: int) -> None:
        super().__init__(inside, hidden, batch_first=True)


class Pool(nn.MaxPool2d):
    """A pooling of four places."""

    def __init__(self) -> None:
        super().__init__(2)


class ActiveNorm(nn.BatchNorm1d):
    """A norm that changes what its base computes."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (n, features)."""
        return super().forward(x).relu()
