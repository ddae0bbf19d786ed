"""Forward passes without gradients, batch by batch: what evaluation, prediction and statistics have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.training.memory_layout import MemoryLayout, choose_layout
from fedquilt_common.training.precision import widen_halves
from fedquilt_common.types import Examples

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api.learner import Outputs

Taken = TypeVar("Taken")


@dataclass(frozen=True)
class ForwardPasses:
    """A module in evaluation mode, in fp32.

    Attributes:
        module: its weights have the order of ``layout``.
        layout: the order of samples in memory.
    """

    module: nn.Module
    layout: MemoryLayout

    def run(
        self, data: Examples, batches: Iterable[slice], take: Callable[[slice, Outputs], Taken]
    ) -> Iterator[Taken]:
        """Pass batches through the module, and yield what ``take`` makes of each, in the order of the batches.

        Args:
            data: ``x`` of shape (n, *input_shape).
            batches: positions of the samples of each batch.
            take: from a batch and its outputs, float32 with a row for each sample, to a result.
        """
        for batch in batches:
            yield take(batch, self._pass(data.x[batch]))

    def run_all(self, data: Examples, batches: Iterable[slice]) -> None:
        """Pass batches through the module one after another, for what its layers collect.

        Args:
            data: ``x`` of shape (n, *input_shape).
            batches: positions of the samples of each batch.
        """
        for batch in batches:
            self._pass(data.x[batch])

    def _pass(self, x: NDArray[Any]) -> Outputs:
        with torch.inference_mode():
            output = self.module(self.layout.to_tensor(x))
        outputs = output if isinstance(output, list | tuple) else [output]
        return [widen_halves(tensor).numpy() for tensor in outputs]


def prepare_passes(module: nn.Module, data: Examples) -> ForwardPasses:
    """Return the forward passes of a module for samples such as ``data``; the module is changed in place.

    Args:
        module: on the processor, in evaluation mode.
        data: ``x`` of shape (n, *input_shape).
    """
    layout = choose_layout(module, data.x)
    layout.order_weights(module)
    return ForwardPasses(module, layout)
