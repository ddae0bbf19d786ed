"""Optimisers: SGD, Adam and RMSprop, step for step those of ``torch.optim`` with its defaults; and Keras's last two.

They are written out because importing ``torch.optim`` also imports torch's compiler. That costs 70 MB and most of a
second in each process of a board. ``tests/unit/common/training/test_learner.py`` compares each with torch's own, bit
by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.training.precision import LossScale, widen_halves
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training

_BETAS: Final = (0.9, 0.999)
_ALPHA: Final = 0.99
_EPS: Final = 1e-8
_KERAS_RHO: Final = 0.9
_KERAS_EPS: Final = 1e-7
_STEPS: Final = "steps"


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
        self.update()

    def update(self) -> None:
        """Change the parameters along their gradients, ``grad``; skip if amp's gradients are not finite."""
        with torch.no_grad():
            gradients = [(index, p, p.grad) for index, p in enumerate(self.parameters) if p.grad is not None]
            if self.scale is not None and not self.scale.unscale([gradient for _, _, gradient in gradients]):
                return
            self._steps += 1
            for index, parameter, gradient in gradients:
                if self.training.weight_decay:
                    gradient = gradient.add(parameter, alpha=self.training.weight_decay)
                _UPDATES[self.training.optimiser](self, index, parameter, gradient)

    def state(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return what a later training needs to continue with this optimiser.

        Args:
            names: names of the parameters, in their order.

        Returns:
            Arrays that a checkpoint can hold: fp32, in the shapes of the parameters, and counters.
        """
        averages = {
            f"{names[index]}/{place}": np.asarray(widen_halves(tensor).cpu().numpy(), order="C")
            for index, tensors in self._averages.items()
            for place, tensor in enumerate(tensors)
        }
        return {_STEPS: np.array(self._steps), **averages, **(self.scale.state() if self.scale is not None else {})}

    def load(self, names: Sequence[str], state: Arrays) -> None:
        """Continue from what ``state`` returned for parameters with the same names.

        Args:
            names: names of the parameters, in their order.
            state: the arrays of ``state``, in the shapes of the parameters.
        """
        self._steps = int(state[_STEPS])
        if self.scale is not None:
            self.scale.load(state)
        for index, (name, parameter) in enumerate(zip(names, self.parameters, strict=True)):
            found = [state[f"{name}/{place}"] for place in range(2) if f"{name}/{place}" in state]
            if found:
                stored = [torch.from_numpy(np.array(one)) for one in found]
                self._averages[index] = [torch.empty_like(parameter).copy_(one) for one in stored]

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

    def adam_keras(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take one step of Adam as Keras does; ``gradient`` has the parameter's shape.

        Epsilon, 1e-7, is added before the correction of the second average: Kingma and Ba, end of section 2.
        """
        first, second = self.averages(index, parameter, 2)
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        corrections = [1 - beta**self._steps for beta in _BETAS]
        rate = self.rate * corrections[1] ** 0.5 / corrections[0]
        parameter.addcdiv_(first, second.sqrt().add_(_KERAS_EPS), value=-rate)

    def rmsprop_keras(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take one step of RMSprop as Keras does; ``gradient`` has the parameter's shape.

        rho is 0.9 instead of torch's alpha of 0.99. Epsilon, 1e-7, is below the square root, so gradients far below
        3e-4 make small steps. That is Keras's rule since TensorFlow 2.11; older versions add epsilon to the root.
        """
        (square,) = self.averages(index, parameter, 1)
        square.mul_(_KERAS_RHO).addcmul_(gradient, gradient, value=1 - _KERAS_RHO)
        parameter.addcdiv_(gradient, square.add(_KERAS_EPS).sqrt_(), value=-self.rate)


_UPDATES: Final[dict[str, Callable[[Optimiser, int, nn.Parameter, Tensor], None]]] = {
    "sgd": Optimiser.sgd, "adam": Optimiser.adam, "rmsprop": Optimiser.rmsprop,
    "adam-keras": Optimiser.adam_keras, "rmsprop-keras": Optimiser.rmsprop_keras,
}  # fmt: skip
