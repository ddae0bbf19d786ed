"""Optimisers: SGD, Adam and RMSprop, step for step those of ``torch.optim`` with its defaults.

They are written out instead of taken from ``torch.optim``, which imports the compiler: 70 MB and most of a second for
every process of a board. ``tests/unit/common/test_learner.py`` holds each to the bits of torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from fedquilt_common.training.precision import LossScale

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training

_BETAS: Final = (0.9, 0.999)
_ALPHA: Final = 0.99
_EPS: Final = 1e-8


@dataclass
class Optimiser:
    """Trains ``parameters`` as ``training`` says; ``rate`` is the learning rate of the next step."""

    parameters: list[nn.Parameter]
    training: Training
    scale: LossScale | None = None
    rate: float = field(init=False)
    _kept: dict[int, list[Tensor]] = field(default_factory=dict)
    _steps: int = 0

    def __post_init__(self) -> None:
        self.rate = self.training.lr

    def step(self, loss: Tensor) -> None:
        """Go down the gradient of ``loss``; not at all where amp finds it not finite."""
        for parameter in self.parameters:
            parameter.grad = None
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            given = [(index, p, p.grad) for index, p in enumerate(self.parameters) if p.grad is not None]
            if self.scale is not None and not self.scale.unscale([gradient for _, _, gradient in given]):
                return
            self._steps += 1
            for index, parameter, gradient in given:
                if self.training.weight_decay:
                    gradient = gradient.add(parameter, alpha=self.training.weight_decay)
                _UPDATES[self.training.optimiser](self, index, parameter, gradient)

    def kept(self, index: int, like: Tensor, count: int) -> list[Tensor]:
        """The ``count`` averages that are kept of a parameter; zeros at first."""
        if index not in self._kept:
            self._kept[index] = [torch.zeros_like(like) for _ in range(count)]
        return self._kept[index]

    def sgd(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """With momentum as torch has it: the first step's velocity is the gradient itself."""
        if self.training.momentum:
            if index not in self._kept:
                self._kept[index] = [gradient.clone()]
            else:
                self._kept[index][0].mul_(self.training.momentum).add_(gradient)
            gradient = self._kept[index][0]
        parameter.add_(gradient, alpha=-self.rate)

    def adam(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1."""
        first, second = self.kept(index, parameter, 2)
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        corrections = [1 - beta**self._steps for beta in _BETAS]
        scale = second.sqrt().div_(corrections[1] ** 0.5).add_(_EPS)
        parameter.addcdiv_(first, scale, value=-self.rate / corrections[0])

    def rmsprop(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Hinton, "Neural Networks for Machine Learning", lecture 6e."""
        (square,) = self.kept(index, parameter, 1)
        square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
        parameter.addcdiv_(gradient, square.sqrt().add_(_EPS), value=-self.rate)


_UPDATES: Final[dict[str, Callable[[Optimiser, int, nn.Parameter, Tensor], None]]] = {
    "sgd": Optimiser.sgd, "adam": Optimiser.adam, "rmsprop": Optimiser.rmsprop,
}  # fmt: skip
