"""Where the numbers of samples and weights lie in memory: with the channels last, if the model convolves them.

The order is a rule on the model and never a measurement, because the order of sums, and so the last bits, depend on it.
``benchmarks/training_step.py`` measures what the rule gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.tracing.layer_kinds import is_known
from fedquilt_common.tracing.outputs import OutputForm, form_of

Probed = TypeVar("Probed")

_SERIES: Final = 3
"""Dimensions of a batch of series, (n, channels, times)."""
_IMAGES: Final = 4
"""Dimensions of a batch of images, (n, channels, height, width)."""
_IMAGE_CONVOLUTIONS: Final = (nn.Conv2d, nn.ConvTranspose2d)
_SERIES_NORMS: Final = (nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm)
"""Norms that convert series back, which costs more than the convolutions gain."""
_ONEDNN_BLOCK: Final = 16
"""Most channels that oneDNN, which convolves for torch on x86, takes at once."""
_PROBED: Final = 2
"""Samples that try whether a layer of another package takes tensors in this order."""


@dataclass(frozen=True)
class MemoryLayout:
    """Which tensors have their channels last.

    Attributes:
        dimensions: of the batches and of the weights of convolutions that have; none: every tensor is contiguous.
    """

    dimensions: frozenset[int] = frozenset()

    def order(self, tensor: Tensor) -> Tensor:
        """Return the same numbers in the same shape, in this order."""
        if tensor.dim() not in self.dimensions or not tensor.is_floating_point():
            return tensor
        if tensor.dim() == _SERIES:  # torch convolves series as images of one row
            return tensor.unsqueeze(2).to(memory_format=torch.channels_last).squeeze(2)
        return tensor.to(memory_format=torch.channels_last)

    def order_weights(self, module: nn.Module) -> None:
        """Give the weights of convolutions this order, in place; otherwise each step converts them."""
        for layer in module.modules():
            if isinstance(layer, (nn.Conv1d, *_IMAGE_CONVOLUTIONS)):
                layer.weight.data = self.order(layer.weight.data)


CONTIGUOUS: Final = MemoryLayout()


def to_tensor(x: NDArray[Any]) -> Tensor:
    """Convert a batch of samples to a tensor of the same shape; floating-point numbers become float32."""
    # Copy an array that is read-only, because torch warns about those; indexed batches are copies already.
    batch = x if x.flags.writeable else x.copy()
    return torch.from_numpy(batch if batch.dtype.kind != "f" else batch.astype(np.float32, copy=False))


def choose_layout(module: nn.Module, x: NDArray[Any]) -> MemoryLayout:
    """Choose the order for a model: with the channels last for convolutions over images, and over series without norms.

    A model chooses for itself with the attribute ``channels_last``, true or false. Otherwise a model whose own code
    needs contiguous tensors, as ``x.view(n, -1)`` behind a convolution does, gets them. So does every model with a
    convolution for which oneDNN writes past its memory.

    Args:
        module: on the processor, in fp32.
        x: samples of shape (n, *input_shape); the first two may be given to the model, in evaluation mode.
    """
    if any(_overflows(layer) for layer in module.modules()):
        return CONTIGUOUS
    declared = getattr(module, "channels_last", None)
    if declared is not None:
        return MemoryLayout(frozenset({_SERIES, _IMAGES})) if declared else CONTIGUOUS
    layout = MemoryLayout(frozenset(_dimensions_that_pay(module)))
    return layout if layout == CONTIGUOUS or is_known(module) or _takes(module, layout, x) else CONTIGUOUS


def _overflows(layer: nn.Module) -> bool:
    """Whether oneDNN writes past its memory in this layer's gradient if the channels are last.

    It does for convolutions of one entry that skip entries and have fewer channels than a block of 8 or 16: the
    training process dies or hangs, or the gradient is wrong (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return False
    skips = set(layer.kernel_size) == {1} and set(layer.stride) != {1}
    return skips and layer.in_channels // layer.groups < _ONEDNN_BLOCK


def _dimensions_that_pay(module: nn.Module) -> Iterator[int]:
    layers = list(module.modules())
    if any(isinstance(layer, _IMAGE_CONVOLUTIONS) for layer in layers):
        yield _IMAGES
    if any(isinstance(layer, nn.Conv1d) for layer in layers) and not any(
        isinstance(layer, _SERIES_NORMS) for layer in layers
    ):
        yield _SERIES


def _takes(module: nn.Module, layout: MemoryLayout, x: NDArray[Any]) -> bool:
    return probe(module, layout, x, lambda _: True) or False


def evaluated_form(module: nn.Module, x: NDArray[Any]) -> OutputForm | None:
    """Return the form of a model's outputs in evaluation, which those in training must have.

    Args:
        module: on the processor, in fp32.
        x: samples of shape (n, *input_shape).

    Returns:
        The form; None if the model's code is known, so that training cannot have another one.
    """
    if is_known(module):
        return None
    return probe(module, CONTIGUOUS, x, form_of)


def probe(module: nn.Module, layout: MemoryLayout, x: NDArray[Any], take: Callable[[Any], Probed]) -> Probed | None:
    """Run a model on its first samples in evaluation mode; it keeps its numbers and its mode.

    Args:
        module: on the processor, in fp32.
        layout: the order of the samples.
        x: samples of shape (n, *input_shape).
        take: from its output to the result.

    Returns:
        The result; None if the model fails, since training then raises the same error again.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            return take(module(layout.order(to_tensor(x[:_PROBED]))))
    except Exception:  # a user's forward can raise anything
        return None
    finally:
        for layer, training in modes:
            layer.training = training
