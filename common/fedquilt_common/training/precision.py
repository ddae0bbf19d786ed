"""Number formats of training: fp32, true half precision (fp16, bf16), and mixed precision with a scaled loss (amp).

FedAIoT (Alam et al., 2023) trains clients in half precision. ``amp`` follows Micikevicius et al., "Mixed Precision
Training", ICLR 2018. Operations run in fp16 where that is safe, and weights stay in fp32. The loss is multiplied so
that small gradients do not become 0.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import TrainingDivergedError, UnsupportedPrecisionError
from fedquilt_common.training.out_of_memory import is_out_of_memory
from fedquilt_common.training.torch_setup import fix_workspaces
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training

_HALVES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
FIRST_SCALE: Final = 65536.0
GROWTH_AFTER: Final = 2000
"""Steps without overflow after which the scale is doubled, as in torch.amp.GradScaler."""
_SCALES: Final = (2.0**-24, 2.0**127)
"""Least and greatest scale. Gradients that overflow below the least exceed 10^12; the greatest is GradScaler's."""


@dataclass(frozen=True)
class Arithmetic:
    """Device and number format of training.

    Attributes:
        device: ``cpu`` or ``cuda``.
        precision: ``fp32``, ``fp16``, ``bf16`` or ``amp``.
    """

    device: str
    precision: str

    @property
    def half(self) -> torch.dtype | None:
        """Dtype of parameters, activations, gradients and momentum; None keeps the model's own."""
        return _HALVES.get(self.precision)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for the forward pass: fp16 where torch considers it safe with ``amp``, else nothing."""
        if self.precision != "amp":
            return contextlib.nullcontext()
        return torch.autocast(self.device, torch.float16)

    def place(self, module: nn.Module) -> nn.Module:
        """Move the module to this device and convert it to this dtype, in place; returns the module."""
        return module.to(device=self.device, dtype=self.half)

    def inputs(self, x: Tensor) -> Tensor:
        """Move a batch to this device, and convert floating-point numbers to this dtype; the shape stays."""
        return x.to(self.device, self.half or x.dtype) if x.is_floating_point() else x.to(self.device)


def widen_halves(tensor: Tensor) -> Tensor:
    """Convert a tensor of any shape from fp16 or bf16 to fp32; other dtypes stay.

    Losses and averages are never in half precision.
    """
    return tensor.float() if tensor.dtype in _HALVES.values() else tensor


def choose_arithmetic(training: Training) -> Arithmetic:
    """Choose the device and the number format of training.

    Args:
        training: the experiment's section; ``device`` is cpu, cuda or auto, which prefers cuda.

    Raises:
        UnsupportedPrecisionError: ``training.device`` is cuda and the board has none; or ``training.precision`` is amp
            and this torch has no fp16 autocast for the device.
    """
    device = evaluation_device(training)
    if training.device == "cuda" and device != "cuda":
        raise UnsupportedPrecisionError(
            "training.device = cuda: this board has no CUDA device that torch can use; "
            "set training.device to cpu or auto, or install torch with CUDA"
        )
    arithmetic = Arithmetic(device, training.precision)
    if arithmetic.precision == "amp" and not _autocast_works(arithmetic):
        raise UnsupportedPrecisionError(
            f"training.precision = amp: torch {torch.__version__} has no fp16 autocast on {arithmetic.device}; "
            "choose fp32 or bf16, or a newer torch"
        )
    return arithmetic


def evaluation_device(training: Training) -> str:
    """Return where a model is evaluated: ``cuda`` if ``training.device`` allows it and it is there, else ``cpu``."""
    # The question itself takes memory of a GPU.
    return "cuda" if training.device != "cpu" and torch.cuda.is_available() else "cpu"


def occupy_device(training: Training) -> None:
    """Let CUDA and its libraries allocate the memory that they need, so that free memory no longer includes it.

    They allocate it when they are first used: the code of their kernels, and workspaces for each thread. Nothing
    happens if training will run on the processor.
    """
    if evaluation_device(training) == "cuda":
        fix_workspaces()
        with contextlib.suppress(RuntimeError), torch.random.fork_rng(devices=[]):  # training raises the error again
            _use_libraries(Arithmetic("cuda", training.precision))


def _use_libraries(arithmetic: Arithmetic) -> None:
    """Take a step with one convolution and one matrix product."""
    module = arithmetic.place(nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 8)))
    with arithmetic.autocast():
        total = module(arithmetic.inputs(torch.ones(8, 8, 3, 3))).sum()
    total.backward()


@contextlib.contextmanager
def keep_kernels() -> Iterator[None]:
    """Restore afterwards whether torch uses oneDNN, so that the next task has the same bits as in a new process.

    Where oneDNN cannot multiply matrices in half precision, as on a Raspberry Pi 4, torch stops using it at the first
    attempt, for all later operations of the process.
    """
    enabled = torch.backends.mkldnn.enabled
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = enabled


def _autocast_works(arithmetic: Arithmetic) -> bool:
    """Whether autocast has an effect; old versions of torch only warn, and compute in fp32."""
    matrix = torch.ones(1, 1, device=arithmetic.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with arithmetic.autocast():
            return (matrix @ matrix).dtype == torch.float16


@contextlib.contextmanager
def explain_unsupported(
    module: nn.Module, arithmetic: Arithmetic, compute_loss: Callable[[Arithmetic], tuple[Tensor, Tensor]]
) -> Iterator[None]:
    """Turn an error of a model's first step into one that names the layer, if the precision is the cause.

    To find that out, the step is repeated in fp32, because a model may be wrong in every precision. Errors that the
    precision does not cause pass unchanged. Do not use the module after an error.

    Args:
        module: the model in training.
        arithmetic: device and precision of the step.
        compute_loss: from an ``Arithmetic`` to two tensors of shape (): the loss, and the loss with the penalty.

    Raises:
        UnsupportedPrecisionError: torch cannot train the model in this precision on this device.
    """
    if arithmetic.precision == "fp32":
        yield
        return
    running: list[str] = []
    hooks = _track_layers(module, running)
    try:
        yield
    except (RuntimeError, TypeError) as error:
        where = f"'{running[-1]}'" if running else f"the loss or the gradient of {type(module).__name__}"
        if is_out_of_memory(error) or not _works_in_fp32(module, arithmetic, compute_loss):
            raise
        advice = "fp32, which works here" + ("" if arithmetic.precision == "bf16" else ", or try bf16")
        raise UnsupportedPrecisionError(
            f"training.precision = {arithmetic.precision}: torch cannot train {where} in it on {arithmetic.device} "
            f"({str(error).partition(chr(10))[0][:200]}); choose {advice}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _track_layers(module: nn.Module, running: list[str]) -> list[torch.utils.hooks.RemovableHandle]:
    """Keep ``running`` up to date with the names of the layers that run, the innermost last."""
    hooks = []
    for name, layer in module.named_modules():
        label = f"{name} ({type(layer).__name__})" if name else type(layer).__name__

        def enter(layer: nn.Module, args: Any, label: str = label) -> None:
            running.append(label)

        def leave(layer: nn.Module, args: Any, result: Any) -> None:
            running.pop()

        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    return hooks


def _works_in_fp32(
    module: nn.Module, arithmetic: Arithmetic, compute_loss: Callable[[Arithmetic], tuple[Tensor, Tensor]]
) -> bool:
    try:
        module.float()
        compute_loss(Arithmetic(arithmetic.device, "fp32"))[1].backward()  # type: ignore[no-untyped-call]
    except Exception:  # of any kind: the caller raises the error that it has already
        return False
    return True


class LossScale:
    """Scale of the loss for ``amp``, with the rules of torch.amp.GradScaler.

    An overflow halves it; ``GROWTH_AFTER`` steps without overflow double it. The step that overflowed is repeated
    (``repeated_steps``).
    """

    def __init__(self) -> None:
        self.value = FIRST_SCALE
        self._finite_steps = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the scale, a power of two, and the number of steps since it changed; each of shape ().

        ``load`` takes them.
        """
        return {"scale/value": np.array(self.value, np.float32), "scale/finite_steps": np.array(self._finite_steps)}

    def load(self, state: Arrays) -> None:
        """Continue from what ``state`` returned, arrays of shape (); without them, as after fp32, the scale stays."""
        if "scale/value" in state:
            self.value, self._finite_steps = float(state["scale/value"]), int(state["scale/finite_steps"])

    def unscale(self, gradients: list[Tensor]) -> list[Tensor] | None:
        """Divide the gradients by the scale, in place, and adapt the scale.

        Args:
            gradients: in the shapes and dtypes of the parameters.

        Returns:
            The divided gradients. A gradient in the memory of an earlier one is copied: autograd may give two
            parameters the same one. None if they are not all finite; the caller must repeat the step then.

        Raises:
            TrainingDivergedError: they are not finite even at the least scale.
        """
        # One question for all of them: a GPU must finish its work before it answers.
        finite = not gradients or bool(torch.stack([torch.isfinite(one).all() for one in gradients]).all())
        divided = _copy_shared(gradients) if finite else None
        if divided:
            torch._foreach_div_(divided, self.value)
        self._adapt(finite)
        return divided

    def _adapt(self, finite: bool) -> None:
        self._finite_steps = self._finite_steps + 1 if finite else 0
        if not finite:
            self.value *= 0.5
        elif self._finite_steps == GROWTH_AFTER:
            self.value, self._finite_steps = min(self.value * 2.0, _SCALES[1]), 0
        if self.value < _SCALES[0]:
            raise TrainingDivergedError(
                "training.precision = amp: the gradients are not finite even at the smallest scale of the loss; "
                "try a smaller training.lr, or fp32"
            )


def _copy_shared(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Copy each gradient that lies in the memory of an earlier one, or has several numbers in one place of memory."""
    seen, own = set[int](), list[Tensor]()
    for gradient in gradients:
        place = gradient.untyped_storage().data_ptr()
        own.append(
            gradient.clone(memory_format=torch.contiguous_format)
            if place in seen or 0 in gradient.stride()
            else gradient
        )
        seen.add(place)
    return own
