"""Optimisers: SGD, Adam and RMSprop, step for step those of ``torch.optim`` with its defaults; and Keras's last two.

They are written out because importing ``torch.optim`` also imports torch's compiler. That costs 70 MB and most of a
second in each process of a board. ``tests/unit/common/training/test_learner.py`` compares each with torch's own, bit
by bit.

Small parameters change together, because a GPU takes longer to start an operation than to do it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import UnsupportedPrecisionError
from fedquilt_common.training.precision import LossScale, widen_halves
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training

_BETAS: Final = (0.9, 0.999)
_ALPHA: Final = 0.99
_EPS: Final = 1e-8
_KERAS_RHO: Final = 0.9
_KERAS_EPS: Final = 1e-7
_STEPS: Final = "steps"
_MISSED: Final = "missed"
_KIND: Final = "optimiser/"
"""Start of the name of an entry that names the optimiser, such as ``optimiser/adam``; its number has no meaning."""
_TOGETHER: Final = 1 << 20
"""Bytes of parameters that change together (1 MiB); a larger one changes alone, so that temporaries stay small."""


@dataclass(frozen=True)
class JointStep:
    """Parameters that change together, and their gradients; ``indices``: their places among the optimiser's."""

    indices: tuple[int, ...]
    parameters: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]

    def select(self, places: Sequence[int]) -> JointStep:
        """Return a step of some of the parameters, by their places in this one."""
        chosen = [(self.indices[at], self.parameters[at], self.gradients[at]) for at in places]
        return JointStep(*zip(*chosen, strict=True))


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
    _missed: dict[int, int] = field(default_factory=dict)
    """Steps in which a parameter had no gradient, by its place."""
    _steps: int = 0

    def __post_init__(self) -> None:
        self.rate = self.training.lr

    def step(self, loss: Tensor) -> bool:
        """Change the parameters along the gradient of ``loss``, of shape ().

        Returns:
            Whether the step was taken: not if amp's gradients are not finite.
        """
        for parameter in self.parameters:
            parameter.grad = None
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        return self.update()

    def update(self) -> bool:
        """Change the parameters along their gradients, ``grad``; returns what ``step`` returns."""
        with torch.no_grad():
            places = [index for index, parameter in enumerate(self.parameters) if parameter.grad is not None]
            parameters = [self.parameters[index] for index in places]
            found = [parameter.grad for parameter in parameters if parameter.grad is not None]
            gradients = found if self.scale is None else self.scale.unscale(found)
            if gradients is None:
                return False
            self._steps += 1
            for index in set(range(len(self.parameters))).difference(places):
                self._missed[index] = self._missed.get(index, 0) + 1
            with self._explain_overflow():
                for step in joint_steps(zip(places, parameters, gradients, strict=True)):
                    _UPDATES[self.training.optimiser](self, self._decay(step))
        return True

    @contextlib.contextmanager
    def _explain_overflow(self) -> Iterator[None]:
        """Name the setting that makes torch refuse a step: a factor beyond the parameters' number format."""
        try:
            yield
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            value, key = max((self.rate, "lr"), (self.training.weight_decay, "weight_decay"))
            raise UnsupportedPrecisionError(
                f"training.{key} = {value:g}: is too large for training.precision = {self.training.precision}; "
                "choose a smaller one"
            ) from error

    def _decay(self, step: JointStep) -> JointStep:
        """Add the weight decay to copies of the gradients: autograd may give two parameters the same one."""
        if not (decay := self.training.weight_decay):
            return step
        gradients = torch._foreach_add(step.gradients, step.parameters, alpha=decay)
        return JointStep(step.indices, step.parameters, tuple(gradients))

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
        counted = self._averages if self.training.optimiser == "adam" else ()  # the others' steps do not depend on it
        missed = {f"{names[i]}/{_MISSED}": np.array(self._missed[i]) for i in counted if self._missed.get(i)}
        scale = self.scale.state() if self.scale is not None else {}
        kind = {f"{_KIND}{self.training.optimiser}": np.array(0)}
        return {_STEPS: np.array(self._steps), **kind, **averages, **missed, **scale}

    def load(self, names: Sequence[str], state: Arrays) -> None:
        """Continue from what ``state`` returned for parameters with the same names; start anew if another kind did.

        Args:
            names: names of the parameters, in their order.
            state: the arrays of ``state``, in the shapes of the parameters.
        """
        kinds = {name.removeprefix(_KIND) for name in state if name.startswith(_KIND)}
        if kinds and self.training.optimiser not in kinds:  # an earlier version stored none
            return
        self._steps = int(state[_STEPS])
        if self.scale is not None:
            self.scale.load(state)
        for index, (name, parameter) in enumerate(zip(names, self.parameters, strict=True)):
            found = [state[f"{name}/{place}"] for place in range(2) if f"{name}/{place}" in state]
            # one that was not trained in between starts anew
            self._missed[index] = int(state.get(f"{name}/{_MISSED}", 0 if found else self._steps))
            if found:
                stored = [torch.from_numpy(np.array(one)) for one in found]
                self._averages[index] = [torch.empty_like(parameter).copy_(one) for one in stored]

    def _read_averages(self, step: JointStep, count: int) -> list[tuple[Tensor, ...]]:
        """Return ``count`` running averages of a joint step, each a tensor for each parameter; zeros at first."""
        for index, parameter in zip(step.indices, step.parameters, strict=True):
            if index not in self._averages:
                self._averages[index] = [torch.zeros_like(parameter) for _ in range(count)]
        return list(zip(*(self._averages[index] for index in step.indices), strict=True))

    def _sgd(self, step: JointStep) -> None:
        """Take one step of SGD, with torch's momentum."""
        direction = self._average_directions(step) if self.training.momentum else step.gradients
        torch._foreach_add_(step.parameters, direction, alpha=-self.rate)

    def _average_directions(self, step: JointStep) -> list[Tensor]:
        """Update the velocities of SGD with momentum and return them; a first velocity is the gradient itself."""
        moving = {index: gradient for index, gradient in zip(step.indices, step.gradients, strict=True)
                  if index in self._averages}  # fmt: skip
        if moving:
            velocities = [self._averages[index][0] for index in moving]
            _multiply(velocities, self.training.momentum)
            torch._foreach_add_(velocities, list(moving.values()))
        for index, gradient in zip(step.indices, step.gradients, strict=True):
            if index not in moving:
                self._averages[index] = [gradient.clone()]
        return [self._averages[index][0] for index in step.indices]

    def _adam(self, step: JointStep) -> None:
        """Take one step of Adam.

        Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
        """
        for taken, part in self._by_steps_taken(step):
            first, second = self._average_moments(part)
            corrections = _correct_moments(taken)
            scale = torch._foreach_sqrt(second)
            torch._foreach_div_(scale, corrections[1] ** 0.5)
            torch._foreach_add_(scale, _EPS)
            torch._foreach_addcdiv_(part.parameters, first, scale, value=-self.rate / corrections[0])

    def _by_steps_taken(self, step: JointStep) -> Iterator[tuple[int, JointStep]]:
        """Divide a joint step by the steps of its parameters with this one; torch counts them for each parameter."""
        counts = [self._steps - self._missed.get(index, 0) for index in step.indices]
        for taken in sorted(set(counts)):
            own = [place for place, count in enumerate(counts) if count == taken]
            yield taken, step if len(own) == len(counts) else step.select(own)

    def _adam_keras(self, step: JointStep) -> None:
        """Take one step of Adam as Keras does.

        Epsilon, 1e-7, is added before the correction of the second average: Kingma and Ba, end of section 2. Keras
        counts the steps once for all parameters.
        """
        first, second = self._average_moments(step)
        corrections = _correct_moments(self._steps)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, _KERAS_EPS)
        rate = self.rate * corrections[1] ** 0.5 / corrections[0]
        torch._foreach_addcdiv_(step.parameters, first, scale, value=-rate)

    def _average_moments(self, step: JointStep) -> list[tuple[Tensor, ...]]:
        """Update Adam's averages of the gradients and of their squares, and return them."""
        first, second = self._read_averages(step, 2)
        torch._foreach_lerp_(first, step.gradients, 1 - _BETAS[0])
        _multiply(second, _BETAS[1])
        torch._foreach_addcmul_(second, step.gradients, step.gradients, value=1 - _BETAS[1])
        return [first, second]

    def _rmsprop(self, step: JointStep) -> None:
        """Take one step of RMSprop.

        Hinton, "Neural Networks for Machine Learning", lecture 6e.
        """
        scale = torch._foreach_sqrt(self._average_squares(step, _ALPHA))
        torch._foreach_add_(scale, _EPS)
        torch._foreach_addcdiv_(step.parameters, step.gradients, scale, value=-self.rate)

    def _rmsprop_keras(self, step: JointStep) -> None:
        """Take one step of RMSprop as Keras does.

        rho is 0.9 instead of torch's alpha of 0.99. Epsilon, 1e-7, is below the square root, so gradients far below
        3e-4 make small steps. That is Keras's rule since TensorFlow 2.11; older versions add epsilon to the root.
        """
        scale = torch._foreach_add(self._average_squares(step, _KERAS_RHO), _KERAS_EPS)
        torch._foreach_sqrt_(scale)
        torch._foreach_addcdiv_(step.parameters, step.gradients, scale, value=-self.rate)

    def _average_squares(self, step: JointStep, kept: float) -> tuple[Tensor, ...]:
        """Update RMSprop's average of the squared gradients and return it; ``kept``: the part of the old average."""
        (square,) = self._read_averages(step, 1)
        _multiply(square, kept)
        torch._foreach_addcmul_(square, step.gradients, step.gradients, value=1 - kept)
        return square


def _correct_moments(steps: int) -> list[float]:
    """Return what Adam's two averages are divided by after ``steps`` steps, because they began at zero."""
    return [1 - beta**steps for beta in _BETAS]


def _multiply(tensors: list[Tensor] | tuple[Tensor, ...], factor: float) -> None:
    """Multiply tensors by a factor, in place.

    ``_foreach_mul_`` would round a plain number to half precision first. A factor that is a tensor is not rounded, but
    would be multiplied in float64 with tensors of shape ().
    """
    if shaped := [one for one in tensors if one.dim()]:
        torch._foreach_mul_(shaped, torch.tensor(factor, dtype=torch.float64))
    for one in tensors:
        if not one.dim():
            one.mul_(factor)


def joint_steps(found: Iterable[tuple[int, Tensor, Tensor]]) -> Iterator[JointStep]:
    """Divide parameters of any shapes into steps of up to ``_TOGETHER`` bytes, in their order.

    Args:
        found: each parameter with its place among the optimiser's, and its gradient, of the same shape.
    """
    together, size = list[tuple[int, Tensor, Tensor]](), 0
    for one in found:
        if together and size + one[1].nbytes > _TOGETHER:
            yield JointStep(*zip(*together, strict=True))
            together, size = [], 0
        together.append(one)
        size += one[1].nbytes
    if together:
        yield JointStep(*zip(*together, strict=True))


_UPDATES: Final[dict[str, Callable[[Optimiser, JointStep], None]]] = {
    "sgd": Optimiser._sgd, "adam": Optimiser._adam, "rmsprop": Optimiser._rmsprop,
    "adam-keras": Optimiser._adam_keras, "rmsprop-keras": Optimiser._rmsprop_keras,
}  # fmt: skip
