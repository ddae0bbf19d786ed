"""Compare a traced forward pass with the model's own code, before sub-models run it in the code's place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.building import find_owner
from fedquilt_common.tracing.dry_run import TRIED_SAMPLES
from fedquilt_common.tracing.generators import use_seed
from fedquilt_common.tracing.outputs import refuse_exits
from fedquilt_common.tracing.resize import run_graphs
from fedquilt_common.tracing.trace import Blueprint

log = logging.getLogger(__name__)

_TOLERANCE: Final = 1e-4
"""Largest difference between graph and code, as a part of the largest number in the tensor."""
_NOISE: Final = 1e-3
"""Gradients below this part of the model's largest one may be rounding alone: their tensor is compared as if its
largest number were that part."""
_BLOCK: Final = 1 << 20
"""Numbers that are compared at a time."""
_SPREAD: Final = 0.05
"""Standard deviation of the random numbers that replace parameters of 0: with these, no gradient would pass."""


@dataclass(frozen=True)
class _Pass:
    """What one pass over the samples returns and changes.

    Attributes:
        outputs: of the model.
        gradients: by parameter; None without one. Empty in evaluation.
        buffers: of the model, after the pass.
    """

    outputs: list[Tensor]
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]


@refuse_exits()
def check_graph(build: Callable[[], nn.Module], blueprint: Blueprint, x: NDArray[Any]) -> None:
    """Run the whole model by its own code and by its traced graph, twice in training and once in evaluation.

    Outputs, gradients and buffers must be the same, because sub-models run the graph. Nothing is compared if sub-models
    run the model's own code. If that code cannot be trained on random samples, the log says so. This needs the memory
    of the whole model and twice that of its gradients.

    Args:
        build: makes the model.
        blueprint: how it is cut.
        x: samples of shape (n, *input_shape); the numbers only matter if they are integers, such as numbers of words.

    Raises:
        UncuttableModelError: something differs, as where ``forward`` uses ``torch.no_grad``, which no graph records.
        ExperimentError: its forward calls ``sys.exit``.
    """
    if not blueprint.passes:
        return
    with use_seed(0):
        module = build()
        _fill_zeros(module)
        own = module.forward
        run_graphs(module, blueprint, full_slice(blueprint.anatomy), "cpu")
        traced, mode = module.forward, "training"
        for training, batch in ((True, _draw_uniform(x)), (True, _draw_normal(x)), (False, _draw_normal(x))):
            mode = "training" if training else "evaluation"
            try:
                expected = _run(module.train(training), own, batch, restore=True)
            except Exception as error:  # a user's module can raise anything; its first training reports it
                log.warning("sub-models run the traced graph, but nothing shows that it does what forward does: on "
                            "random samples, forward raises %r", error)  # fmt: skip
                return
            difference = _try_graph(module, traced, batch, expected, mode)
            if difference:
                raise UncuttableModelError(
                    "the model cannot be cut: forward contains or compares sizes, so sub-models run its traced graph, "
                    f"but in the graph {difference}. The graph misses something of forward, such as torch.no_grad, an "
                    "autograd.Function, isinstance(x, Tensor), torch.utils.checkpoint, a buffer that is changed in "
                    "place, or state or a random generator of the module; take each size from a shape, as in "
                    "x.view(n, x.shape[1]) or x.flatten(1), so that sub-models run forward itself, or choose an "
                    "algorithm that sends whole models"
                )


def _draw_uniform(x: NDArray[Any]) -> Tensor:
    """Return samples of numbers from 0 to 1, as of a picture; whole numbers are those of ``x``."""
    shape = (TRIED_SAMPLES, *x.shape[1:])
    if x.dtype.kind != "f":
        return torch.from_numpy(np.resize(np.asarray(x[:TRIED_SAMPLES]), shape)).long()
    return torch.rand(shape)


def _draw_normal(x: NDArray[Any]) -> Tensor:
    """Return samples of normal numbers; whole numbers are those of ``x``."""
    batch = _draw_uniform(x)
    return torch.randn(batch.shape) if batch.is_floating_point() else batch


@torch.no_grad()
def _fill_zeros(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.is_floating_point() and not parameter.any():
            parameter.normal_(0, _SPREAD)


def _run(module: nn.Module, forward: Callable[..., Any], batch: Tensor, *, restore: bool) -> _Pass:
    """Run the module in its present mode by ``forward``; then put its buffers back if wanted."""
    before = [(*find_owner(module, name), buffer, buffer.clone()) for name, buffer in module.named_buffers()]
    module.forward = forward
    with use_seed(0), torch.set_grad_enabled(module.training):
        outputs = list(_flatten(module(batch.clone())))
        if module.training:
            _differentiate(outputs)
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()} if module.training else {}
    module.zero_grad(set_to_none=True)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for owner, leaf, buffer, values in before if restore else ():
        setattr(owner, leaf, buffer.copy_(values))
    return _Pass([output.detach() for output in outputs], gradients, buffers)


def _flatten(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _flatten(item)


def _differentiate(outputs: list[Tensor]) -> None:
    """Compute the gradients of a random scalar product of the outputs."""
    numbers = torch.Generator().manual_seed(0)
    trained = [output for output in outputs if output.requires_grad]
    if trained:
        weights = [torch.randn(output.shape, generator=numbers).to(output.dtype) for output in trained]
        torch.autograd.backward(trained, weights)


def _try_graph(module: nn.Module, traced: Callable[..., Any], batch: Tensor, expected: _Pass, mode: str) -> str:
    """Return what differs if the module runs its graph instead of its code; empty if nothing does."""
    try:
        found = _run(module, traced, batch, restore=False)
    except Exception as error:  # torch raises several kinds of error for operations that do not fit
        return f"{mode} does not run ({type(error).__name__}: {error})"
    return _find_difference(expected, found, mode)


def _find_difference(expected: _Pass, found: _Pass, mode: str) -> str:
    pairs = zip(expected.outputs, found.outputs, strict=False)
    if len(expected.outputs) != len(found.outputs) or any(_are_different(one, other) for one, other in pairs):
        return f"the model has another output in {mode}"
    gradients = expected.gradients
    suspects = [name for name in gradients if _are_different(gradients[name], found.gradients[name])]
    if suspects:
        least = _NOISE * max((_find_largest(one) for one in gradients.values() if one is not None), default=0.0)
        for name in suspects:
            if _are_different(gradients[name], found.gradients[name], least):
                return f"the gradient of '{name}' is another one"
    for name, buffer in expected.buffers.items():
        if _are_different(buffer, found.buffers.get(name)):
            return f"the buffer '{name}' is another one after {mode}"
    return ""


def _are_different(one: Tensor | None, other: Tensor | None, least: float = 0.0) -> bool:
    """Whether two tensors differ by more than rounding, of numbers of which the largest is at least ``least``."""
    if one is None or other is None:
        return one is not other
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if torch.equal(one, other):
        return False
    limit = _TOLERANCE * max(_find_largest(one), least)
    blocks = zip(_split(one), _split(other), strict=True)
    return not all(torch.allclose(b.double(), a.double(), rtol=0, atol=limit, equal_nan=True) for a, b in blocks)


def _find_largest(tensor: Tensor) -> float:
    """Return the largest absolute value of the finite numbers; 0 without any."""
    finite = (block[block.isfinite()] for block in _split(tensor))
    return max((float(block.double().abs().max()) for block in finite if block.numel()), default=0.0)


def _split(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the numbers in blocks, so that copies of them stay small."""
    return torch.split(tensor.reshape(-1), _BLOCK)
