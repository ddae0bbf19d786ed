"""Forward passes without gradients, batch by batch: what evaluation, prediction and statistics have in common.

Batches are spread over threads, each of which computes with one thread. So the bits of a batch do not depend on their
number, and the results are taken in the order of the batches.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.training.memory_layout import MemoryLayout, choose_layout, to_tensor
from fedquilt_common.training.precision import widen_halves
from fedquilt_common.training.torch_setup import leave_new_memory
from fedquilt_common.types import Examples

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api.learner import Outputs

Taken = TypeVar("Taken")

_TRIED: Final = 2
"""Batches that one thread computes before others join; the second one is timed, after torch has prepared itself."""
_WORTH_SHARING: Final = 1e-3
"""Seconds of a batch above which other threads join; below, they would wait for each other's Python code."""


@dataclass(frozen=True)
class ForwardPasses:
    """A module in evaluation mode, in fp32.

    Attributes:
        module: on the device; its weights have the order of ``layout``.
        layout: the order of samples in memory.
        device: ``cpu`` or ``cuda``.
        threads: batches that a processor passes at a time.
    """

    module: nn.Module
    layout: MemoryLayout
    device: str = "cpu"
    threads: int = 1

    def run(self, data: Examples, batches: Sequence[slice], take: Callable[[slice, Outputs], Taken]) -> Sequence[Taken]:
        """Pass batches through the module; threads share the work if the module can be copied.

        Args:
            data: ``x`` of shape (n, *input_shape).
            batches: positions of the samples of each batch.
            take: from a batch and its outputs, float32 with a row for each sample, to a result; must be thread-safe.

        Returns:
            What ``take`` makes of each batch, in the order of the batches.
        """
        results: list[Any] = [None] * len(batches)
        places = iter(range(len(batches)))  # the threads share it: each takes the next batch when it has done one

        def work(module: nn.Module, most: int | None = None) -> None:
            for place in itertools.islice(places, most):
                results[place] = take(batches[place], self._pass(module, data.x[batches[place]]))

        with _one_thread_each():
            seconds = [_time(lambda: work(self.module, most=1)) for _ in range(_TRIED)]
            copies = self._copy_module(len(batches) - _TRIED) if seconds[-1] > _WORTH_SHARING else []
            with leave_new_memory(), ThreadPoolExecutor(max(1, len(copies))) as pool:
                others = [pool.submit(work, module) for module in copies]
                work(self.module)
                for other in others:
                    other.result()
        return results

    def _copy_module(self, batches: int) -> list[nn.Module]:
        """Return copies of the module for other threads, which share its numbers.

        A layer may keep objects of a pass, so threads do not share the module itself. There are no copies if hooks
        connect it to other objects, or if it cannot be copied.
        """
        count = min(self.threads, batches) if self.device == "cpu" else 1
        if any(layer._forward_hooks or layer._forward_pre_hooks for layer in self.module.modules()):
            return []
        shared = {id(tensor): tensor for tensor in (*self.module.parameters(), *self.module.buffers())}
        try:
            return [copy.deepcopy(self.module, dict(shared)) for _ in range(count - 1)]
        except Exception:  # a user's model can hold anything, such as an open file
            return []

    def run_all(self, data: Examples, batches: Iterable[slice]) -> None:
        """Pass batches through the module one after another, for what its layers collect.

        Args:
            data: ``x`` of shape (n, *input_shape).
            batches: positions of the samples of each batch.
        """
        for batch in batches:
            self._pass(self.module, data.x[batch])

    def _pass(self, module: nn.Module, x: NDArray[Any]) -> Outputs:
        with torch.inference_mode():
            output = module(self.layout.order(to_tensor(x).to(self.device)))
        outputs = output if isinstance(output, list | tuple) else [output]
        return [widen_halves(tensor).cpu().numpy() for tensor in outputs]


def _time(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let operations compute with one thread, even in threads that start in this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare_passes(module: nn.Module, data: Examples, device: str = "cpu", threads: int = 1) -> ForwardPasses:
    """Return the forward passes of a module for samples such as ``data``; the module is changed in place.

    Args:
        module: on the processor, in evaluation mode.
        data: ``x`` of shape (n, *input_shape).
        device: ``cpu`` or ``cuda``.
        threads: batches that a processor passes at a time.
    """
    layout = choose_layout(module, data.x)
    module = module.to(device)
    layout.order_weights(module)
    return ForwardPasses(module, layout, device, threads)
