"""How much memory training a sub-model takes, from its blueprint: no number is computed, nothing is allocated.

The forward pass keeps what the backward pass will need; the backward pass frees it again while gradients grow. The
peak is the highest point of that walk. ``benchmarks/memory.py`` holds it against measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedquilt_common.anatomy.cost import ATTENTION, CONVOLUTIONS, NORMS, RECURRENT, TRANSPOSED, numbers, tensors_of
from fedquilt_common.slicing import Slice

if TYPE_CHECKING:
    from fedquilt_common.anatomy.trace import Blueprint, Step
    from fedquilt_common.experiment import Training

_VIEWS: Final = frozenset({
    "Flatten", "Unflatten", "flatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "getitem",
    "chunk", "split", "expand", "movedim", "unflatten", "contiguous", "detach", "Identity", "t", "size",
})  # fmt: skip
_KEEP_RESULT: Final = frozenset({
    "ReLU", "relu", "Sigmoid", "sigmoid", "Tanh", "tanh", "Softmax", "softmax", "LogSoftmax", "log_softmax", "exp",
    "sqrt", "rsqrt", "scaled_dot_product_attention",
})  # fmt: skip
_KEEP_NOTHING: Final = frozenset({
    "add", "iadd", "sub", "isub", "cat", "concat", "stack", "mean", "sum", "input", "Scaler", "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d", "neg", "pad", "truediv",
})  # fmt: skip
_WITH_MATRICES: Final = CONVOLUTIONS | TRANSPOSED | RECURRENT | ATTENTION | {"Linear", "matmul", "bmm"}
_INDEX_BYTES: Final = 8
_PER_CONVOLUTION: Final = 350 << 10
"""What each convolution's kernels take and do not give back (350 KiB): measured, as the numbers of ``_FORMATS``."""
_PER_WEIGHT: Final = 0.6
"""Bytes that the heap and the matrix kernels lose for each weight."""


@dataclass(frozen=True)
class Estimate:
    """Bytes. ``activations``: all that the backward pass needs; ``temporaries``: what else lives at the highest point,
    gradients among it; ``kernels``: what torch loads and takes for its own use. ``total`` is the peak of a first
    training, beyond the process as it was: weights, optimiser, activations, temporaries and kernels.
    What was received does not count: it stays a file, of which one array at a time is read."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    temporaries: int
    kernels: int
    total: int


@dataclass(frozen=True)
class _Format:
    """Bytes of a number: of weights as they are kept, of what layers with matrices make of fp32, of half-precision
    copies of the weights (autocast keeps them until the step is over); and what torch loads for a first training."""

    weight: int
    made: int
    copies: int
    loaded: int


_FORMATS: Final[Mapping[str, _Format]] = {
    "fp32": _Format(4, 4, 0, 12 << 20),
    "fp16": _Format(2, 2, 0, 12 << 20),
    "bf16": _Format(2, 2, 0, 20 << 20),
    "amp": _Format(4, 2, 2, 13 << 20),
}


def memory_to_train(blueprint: Blueprint, part: Slice, training: Training) -> Estimate:
    """The memory that a training process needs for the sub-model ``part``."""
    size = _FORMATS[training.precision]
    params = sum(math.prod(part.shapes[name]) for name in blueprint.parameters if name in part.shapes)
    weights = part.entries * size.weight + params * size.copies
    optimiser = params * size.weight if training.momentum else 0
    gradients = params * size.weight
    decayed = max(map(math.prod, part.shapes.values()), default=0) * size.weight if training.weight_decay else 0
    steps = [step for step in blueprint.steps if _is_there(step, part)]
    kept, highest = _walk(blueprint, part, training.batch, size, steps)
    peak = max(highest, gradients + decayed)
    kernels = _kernels(steps, part, size)
    total = weights + optimiser + peak + kernels
    return Estimate(weights, gradients, optimiser, kept, max(0, peak - kept), kernels, total)


def _kernels(steps: list[Step], part: Slice, size: _Format) -> int:
    convolutions = sum(_mixes_channels(step, part) for step in steps)
    return size.loaded + convolutions * _PER_CONVOLUTION + int(part.entries * _PER_WEIGHT)


def _mixes_channels(step: Step, part: Slice) -> bool:
    """Whether it is a convolution, but not a depthwise one, whose kernels take next to nothing."""
    if step.kind not in CONVOLUTIONS and step.kind not in TRANSPOSED:
        return False
    return tensors_of(step, part)["weight"][1] > 1


def _widths(blueprint: Blueprint, size: _Format) -> list[int]:
    """Bytes of a number of each step's result: layers with matrices make ``size.made``, others what they are given."""
    widths: list[int] = []
    for step in blueprint.steps:
        given = [widths[place] for place in step.inputs]
        widths.append(size.made if step.kind in _WITH_MATRICES else max(given, default=size.weight))
    return widths


def _is_there(step: Step, part: Slice) -> bool:
    """Whether the step is part of the sub-model, which may be cut in depth."""
    own = [name for name in part.anatomy.arrays if name.startswith(f"{step.name}.")]
    return not own or any(name in part.shapes for name in own)


def _walk(blueprint: Blueprint, part: Slice, batch: int, size: _Format, steps: list[Step]) -> tuple[int, int]:
    """(bytes kept for the backward pass, highest point of activations and gradients together)."""
    widths = _widths(blueprint, size)
    result = {id(step): numbers(step, part, batch) * w for step, w in zip(blueprint.steps, widths, strict=True)}
    owners = _owners(blueprint)
    kept: dict[object, int] = {}
    at_forward = at_backward = 0
    held_after: list[int] = []
    for step in steps:
        for tensor, amount in _keeps(blueprint, step, part, batch, size, owners, result):
            kept.setdefault(tensor, amount)
        held = sum(kept.values())
        held_after.append(held)
        at_forward = max(at_forward, held + result[id(step)] + _workspace(blueprint, step, part, result))
    gradients = 0
    for step, held in zip(reversed(steps), reversed(held_after), strict=True):
        flowing = result[id(step)] + sum(result[id(blueprint.steps[place])] for place in step.inputs)
        at_backward = max(at_backward, held + gradients + flowing + _workspace(blueprint, step, part, result))
        gradients += sum(map(math.prod, tensors_of(step, part).values())) * size.weight
    return sum(kept.values()), max(at_forward, at_backward, gradients)


def _owners(blueprint: Blueprint) -> list[int]:
    """For each step the one whose memory its result lies in: views lie in their input's."""
    owners: list[int] = []
    for place, step in enumerate(blueprint.steps):
        owners.append(owners[step.inputs[0]] if step.kind in _VIEWS and step.inputs else place)
    return owners


def _keeps(
    blueprint: Blueprint,
    step: Step,
    part: Slice,
    batch: int,
    size: _Format,
    owners: list[int],
    result: Mapping[int, int],
) -> list[tuple[object, int]]:
    """(tensor, bytes) that autograd keeps on account of one step; the same tensor may be kept by several."""
    place = blueprint.steps.index(step)
    if step.kind in _VIEWS or step.kind in _KEEP_NOTHING:
        return []
    if step.kind in _KEEP_RESULT:
        return [(owners[place], result[id(step)])]
    inputs = [_kept_input(blueprint, owners[i], step, part, batch, size, result) for i in step.inputs]
    return inputs + [((place, "own"), amount) for amount in _own(blueprint, step, part, batch, size, result) if amount]


def _kept_input(
    blueprint: Blueprint, owner: int, user: Step, part: Slice, batch: int, size: _Format, result: Mapping[int, int]
) -> tuple[object, int]:
    """The tensor itself; of one that is too wide for a layer with matrices, the copy that autocast makes."""
    given = blueprint.steps[owner]
    cast = numbers(given, part, batch) * size.made
    if user.kind in _WITH_MATRICES and cast < result[id(given)]:
        return (owner, "cast"), cast
    return owner, result[id(given)]


def _own(
    blueprint: Blueprint, step: Step, part: Slice, batch: int, size: _Format, result: Mapping[int, int]
) -> list[int]:
    """Bytes that a layer keeps of what it alone makes."""
    made = result[id(step)]
    if step.kind.startswith(("MaxPool", "max_pool", "AdaptiveMaxPool")):
        return [numbers(step, part, batch) * _INDEX_BYTES]
    if "ropout" in step.kind:
        return [made]  # a mask as numbers
    own = tensors_of(step, part)
    if step.kind in RECURRENT:
        rows = sum(shape[0] for name, shape in own.items() if name.startswith("weight_ih"))
        return [2 * rows * _tokens(blueprint, step, part, batch) * size.made]
    if step.kind in ATTENTION:
        width = own["in_proj_weight"][0] // 3 if "in_proj_weight" in own else own["query.weight"][0]
        return [5 * width * _tokens(blueprint, step, part, batch) * size.made]
    return []


def _tokens(blueprint: Blueprint, step: Step, part: Slice, batch: int) -> int:
    given = blueprint.steps[step.inputs[0]]
    return numbers(given, part, batch) // part.length(given.axes[-1])


def _workspace(blueprint: Blueprint, step: Step, part: Slice, result: Mapping[int, int]) -> int:
    """Kernels of convolutions bring inputs, results and weights into a layout of their own; norms make temporaries."""
    if step.kind in CONVOLUTIONS or step.kind in TRANSPOSED:
        given = sum(result[id(blueprint.steps[place])] for place in step.inputs)
        return result[id(step)] + given + sum(map(math.prod, tensors_of(step, part).values())) * 4
    return result[id(step)] if step.kind in NORMS else 0
