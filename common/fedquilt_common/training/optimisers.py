"""Optimisers: SGD, Adam and RMSprop, step for step those of ``torch.optim`` with its defaults.

They are written out because importing ``torch.optim`` also imports torch's compiler. That costs 70 MB and most of a
second in each process of a board. ``tests/unit/common/training/test_learner.py`` compares each with torch's own, bit
by bit.
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
    """Optimiser with its state.

    Attributes:
        parameters: the parameters that a step changes.
        training: the experiment's settings, such as ``optimiser``, ``lr``, ``momentum`` and ``weight_decay``.
        scale: scale of the loss for mixed precision; None for none.
        rate: learning rate of the next step.
    """

    parameters: list[nn.Parameter]
    training: Training
    scale: LossScale | None = None
    rate: float = field(init=False)
    _averages: dict[int, list[Tensor]] = field(default_factory=dict)
    _steps: int = 0

    def __post_init__(self) -> None:
        self.rate = self.training.lr

    def step(self, loss: Tensor) -> None:
        """Change the parameters along the gradient of ``loss``, of shape (); skip if amp's gradients are not finite."""
        for parameter in self.parameters:
            parameter.grad = None
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            gradients = [(index, p, p.grad) for index, p in enumerate(self.parameters) if p.grad is not None]
            if self.scale is not None and not self.scale.unscale([gradient for _, _, gradient in gradients]):
                return
            self._steps += 1
            for index, parameter, gradient in gradients:
                if self.training.weight_decay:
                    gradient = gradient.add(parameter, alpha=self.training.weight_decay)
                _UPDATES[self.training.optimiser](self, index, parameter, gradient)

    def averages(self, index: int, parameter: Tensor, count: int) -> list[Tensor]:
        """Running averages of a parameter: ``count`` tensors in its shape and dtype, zeros at first."""
        if index not in self._averages:
            self._averages[index] = [torch.zeros_like(parameter) for _ in range(count)]
        return self._averages[index]

    def sgd(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take one step of SGD, with torch's momentum; ``gradient`` has the parameter's shape.

        The first step's velocity is the gradient itself.
        """
        if self.training.momentum:
            if index not in self._averages:
                self._averages[index] = [gradient.clone()]
            else:
                self._averages[index][0].mul_(self.training.momentum).add_(gradient)
            gradient = self._averages[index][0]
        parameter.add_(gradient, alpha=-self.rate)

    def adam(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take one step of Adam; ``gradient`` has the parameter's shape.

        Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
        """
        first, second = self.averages(index, parameter, 2)
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        corrections = [1 - beta**self._steps for beta in _BETAS]
        scale = second.sqrt().div_(corrections[1] ** 0.5).add_(_EPS)
        parameter.addcdiv_(first, scale, value=-self.rate / corrections[0])

    def rmsprop(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take one step of RMSprop; ``gradient`` has the parameter's shape.

        Hinton, "Neural Networks for Machine Learning", lecture 6e.
        """
        (square,) = self.averages(index, parameter, 1)
        square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
        parameter.addcdiv_(gradient, square.sqrt().add_(_EPS), value=-self.rate)


_UPDATES: Final[dict[str, Callable[[Optimiser, int, nn.Parameter, Tensor], None]]] = {
    "sgd": Optimiser.sgd, "adam": Optimiser.adam, "rmsprop": Optimiser.rmsprop,
}  # fmt: skip
