"""Number formats of training: fp32, true half precision (fp16, bf16), and mixed precision with a scaled loss (amp).

FedAIoT (Alam et al., 2023) trains clients in half precision; ``amp`` follows Micikevicius et al., "Mixed Precision
Training", ICLR 2018: operations in fp16 where that is safe, weights in fp32, the loss multiplied so that small
gradients do not vanish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from fedquilt_common.errors import UnsupportedPrecisionError

if TYPE_CHECKING:
    from fedquilt_common.experiment import Training

_HALVES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
FIRST_SCALE: Final = 65536.0
GROWTH_AFTER: Final = 2000
"""Steps without overflow after which the scale is doubled, as in torch.amp.GradScaler."""


@dataclass(frozen=True)
class Arithmetic:
    """Where and in which numbers a model is trained."""

    device: str
    precision: str

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters, activations, gradients and momentum."""
        return _HALVES.get(self.precision, torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """Around the forward pass: half precision where torch deems it safe, for ``amp`` only."""
        if self.precision != "amp":
            return contextlib.nullcontext()
        return torch.autocast(self.device, torch.float16)

    def place(self, module: nn.Module) -> nn.Module:
        """The module on this device in this dtype; the same object when it is there already."""
        return module.to(device=self.device, dtype=self.dtype)

    def inputs(self, x: Tensor) -> Tensor:
        """A batch as the module wants it; whole numbers stay what they are."""
        return x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)


def arithmetic(training: Training) -> Arithmetic:
    """What the experiment asks for, on a device that is there.

    Raises UnsupportedPrecisionError when ``training.device`` is cuda and there is none.
    """
    there = torch.cuda.is_available()
    if training.device == "cuda" and not there:
        raise UnsupportedPrecisionError(
            "training.device = cuda: this board has no CUDA device that torch can use; "
            "set training.device to cpu or auto, or install torch with CUDA"
        )
    return Arithmetic("cuda" if there and training.device != "cpu" else "cpu", training.precision)


@contextlib.contextmanager
def refusing(module: nn.Module, how: Arithmetic) -> Iterator[None]:
    """Around a model's first step: what torch cannot do in this precision becomes an error with a name.

    Raises UnsupportedPrecisionError; in fp32 torch's own errors pass.
    """
    running: list[str] = []
    hooks = [] if how.precision == "fp32" else _watch(module, running)
    try:
        yield
    except (RuntimeError, NotImplementedError, TypeError) as error:
        if how.precision == "fp32" or _is_memory(error):
            raise
        where = f"'{running[-1]}'" if running else type(module).__name__
        raise UnsupportedPrecisionError(
            f"training.precision = {how.precision}: {where} cannot be trained so on {how.device}: "
            f"{str(error).splitlines()[0]}; choose fp32, or bf16 where the board supports it"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _watch(module: nn.Module, running: list[str]) -> list[torch.utils.hooks.RemovableHandle]:
    """Note the name of the layer that runs now."""
    hooks = []
    for name, layer in module.named_modules():
        if name and not list(layer.children()):
            label = f"{name} ({type(layer).__name__})"
            hooks.append(layer.register_forward_pre_hook(lambda m, x, label=label: running.append(label)))
    return hooks


def _is_memory(error: BaseException) -> bool:
    return "memory" in str(error).lower()


class LossScale:
    """The factor of the loss, with the rules of torch.amp.GradScaler: halved on overflow, doubled now and then."""

    def __init__(self) -> None:
        self.value = FIRST_SCALE
        self._good = 0

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide the gradients by the scale; False when one is not finite, and the step must be left out."""
        finite = all(bool(torch.isfinite(g).all()) for g in gradients)
        if finite:
            for gradient in gradients:
                gradient.mul_(1.0 / self.value)
            self._good += 1
            if self._good == GROWTH_AFTER:
                self.value, self._good = self.value * 2.0, 0
        else:
            self.value, self._good = self.value * 0.5, 0
        return finite
