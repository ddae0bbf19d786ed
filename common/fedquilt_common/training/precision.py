"""Number formats of training: fp32, true half precision (fp16, bf16), and mixed precision with a scaled loss (amp).

FedAIoT (Alam et al., 2023) trains clients in half precision; ``amp`` follows Micikevicius et al., "Mixed Precision
Training", ICLR 2018: operations in fp16 where that is safe, weights in fp32, the loss multiplied so that small
gradients do not vanish.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from fedquilt_common.errors import TrainingDivergedError, UnsupportedPrecisionError

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training

_HALVES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
FIRST_SCALE: Final = 65536.0
GROWTH_AFTER: Final = 2000
"""Steps without overflow after which the scale is doubled, as in torch.amp.GradScaler."""
_SCALES: Final = (2.0**-24, 2.0**127)
"""Below the least scale the gradients themselves pass 10^12; the greatest is that of fp32, as in GradScaler."""


@dataclass(frozen=True)
class Arithmetic:
    """Where and in which numbers a model is trained."""

    device: str
    precision: str

    @property
    def half(self) -> torch.dtype | None:
        """Of parameters, activations, gradients and momentum; None leaves them as the model made them."""
        return _HALVES.get(self.precision)

    def autocast(self) -> AbstractContextManager[object]:
        """Around the forward pass: half precision where torch deems it safe, for ``amp`` only."""
        if self.precision != "amp":
            return contextlib.nullcontext()
        return torch.autocast(self.device, torch.float16)

    def place(self, module: nn.Module) -> nn.Module:
        """The module itself, moved to this device and turned into this dtype."""
        return module.to(device=self.device, dtype=self.half)

    def inputs(self, x: Tensor) -> Tensor:
        """A batch as the module wants it; whole numbers stay what they are."""
        return x.to(self.device, self.half or x.dtype) if x.is_floating_point() else x.to(self.device)


def widened(tensor: Tensor) -> Tensor:
    """Halves as fp32, the rest as it is: losses and averages are never in half precision."""
    return tensor.float() if tensor.dtype in _HALVES.values() else tensor


def arithmetic(training: Training) -> Arithmetic:
    """What the experiment asks for, on a device that is there.

    Raises UnsupportedPrecisionError when ``training.device`` is cuda and there is none, and for amp where this torch
    has no fp16 autocast for the device.
    """
    there = training.device != "cpu" and torch.cuda.is_available()  # asking costs memory where there is one
    if training.device == "cuda" and not there:
        raise UnsupportedPrecisionError(
            "training.device = cuda: this board has no CUDA device that torch can use; "
            "set training.device to cpu or auto, or install torch with CUDA"
        )
    how = Arithmetic("cuda" if there else "cpu", training.precision)
    if how.precision == "amp" and not _casts(how):
        raise UnsupportedPrecisionError(
            f"training.precision = amp: torch {torch.__version__} has no fp16 autocast on {how.device}; "
            "choose fp32 or bf16, or a newer torch"
        )
    return how


def _casts(how: Arithmetic) -> bool:
    """Whether autocast does anything: old versions of torch only warn, and go on in fp32."""
    one = torch.ones(1, 1, device=how.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with how.autocast():
            return (one @ one).dtype == torch.float16


@contextlib.contextmanager
def refusing(module: nn.Module, how: Arithmetic, goal: Callable[[Arithmetic], tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Around a model's first step: what torch cannot do in this precision becomes an error with a name.

    ``goal`` computes (loss, loss and penalty); it is tried in fp32 before the precision is blamed, since a model may
    be wrong in every precision. After an error the module is of no more use.
    Raises UnsupportedPrecisionError; errors that have nothing to do with the precision pass.
    """
    if how.precision == "fp32":
        yield
        return
    running: list[str] = []
    hooks = _watch(module, running)
    try:
        yield
    except (RuntimeError, TypeError) as error:
        where = f"'{running[-1]}'" if running else f"the loss or the gradient of {type(module).__name__}"
        if _is_memory(error) or not _works_in_fp32(module, how, goal):
            raise
        others = "fp32, which works here" + ("" if how.precision == "bf16" else ", or try bf16")
        raise UnsupportedPrecisionError(
            f"training.precision = {how.precision}: torch cannot train {where} so on {how.device} "
            f"({str(error).partition(chr(10))[0][:200]}); choose {others}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _watch(module: nn.Module, running: list[str]) -> list[torch.utils.hooks.RemovableHandle]:
    """Keep the names of the layers that run now, the innermost last."""
    hooks = []
    for name, layer in module.named_modules():
        label = f"{name} ({type(layer).__name__})" if name else type(layer).__name__

        def enter(layer: nn.Module, given: Any, label: str = label) -> None:
            running.append(label)

        def leave(layer: nn.Module, given: Any, result: Any) -> None:
            running.pop()

        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    return hooks


def _works_in_fp32(module: nn.Module, how: Arithmetic, goal: Callable[[Arithmetic], tuple[Tensor, Tensor]]) -> bool:
    try:
        module.float()
        goal(Arithmetic(how.device, "fp32"))[1].backward()  # type: ignore[no-untyped-call]
    except Exception:  # whatever it is, the caller has an error to show already
        return False
    return True


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, torch.cuda.OutOfMemoryError) or "allocate memory" in str(error)


class LossScale:
    """The factor of the loss, with the rules of torch.amp.GradScaler: halved on overflow, doubled now and then."""

    def __init__(self) -> None:
        self.value = FIRST_SCALE
        self._good = 0

    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide the gradients by the scale; False when one is not finite, and the step must be left out.

        Raises TrainingDivergedError when they stay so however small the scale.
        """
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if finite:
            for gradient in gradients:
                gradient.mul_(1.0 / self.value)
        self._after(finite)
        return finite

    def _after(self, finite: bool) -> None:
        self._good = self._good + 1 if finite else 0
        if not finite:
            self.value *= 0.5
        elif self._good == GROWTH_AFTER:
            self.value, self._good = min(self.value * 2.0, _SCALES[1]), 0
        if self.value < _SCALES[0]:
            raise TrainingDivergedError(
                "training.precision = amp: the gradients are not finite, however small the scale of the loss; "
                "try a smaller training.lr, or fp32"
            )
