"""Modules as users write them: parts as attributes, and a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Build = Callable[[], nn.Module]


def module(forward: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Return a class of modules with these parts; a part that is a plain tensor becomes a buffer."""

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, make in parts.items():
                part = make()
                if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                    self.register_buffer(name, part)
                else:
                    setattr(self, name, part)

    Mine.forward = forward
    return Mine


def conv(*sizes: Any, **more: Any) -> Callable[[], nn.Module]:
    """Return what makes a convolution."""
    return lambda: nn.Conv2d(*sizes, **more)


def linear(*sizes: Any) -> Callable[[], nn.Module]:
    """Return what makes a linear layer."""
    return lambda: nn.Linear(*sizes)
