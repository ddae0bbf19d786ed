"""How much memory training a sub-model takes, from its blueprint: no number is computed, nothing is allocated.

The forward pass keeps what the backward pass will need; the backward pass frees it again while gradients grow. The
peak is the highest point of that walk. ``benchmarks/memory.py`` holds it against measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.cost import ATTENTION, CONVOLUTIONS, NORMS, RECURRENT, TRANSPOSED, numbers, tensors_of

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training
    from fedquilt_common.tracing.trace import Blueprint

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
_CONVOLVING: Final = CONVOLUTIONS | TRANSPOSED
_WITH_MATRICES: Final = _CONVOLVING | RECURRENT | ATTENTION | {"Linear", "matmul", "bmm"}
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
    walk = _Walk(blueprint, part, training.batch, size)
    params = sum(math.prod(part.shapes[name]) for name in blueprint.parameters if name in part.shapes)
    weights = part.entries * size.weight + params * size.copies
    optimiser = params * size.weight * _kept_averages(training)
    gradients = params * size.weight
    largest = max(map(math.prod, part.shapes.values()), default=0) * size.weight
    decayed = largest * ((training.weight_decay > 0) + (training.optimiser != "sgd"))
    kept, highest = walk.peak()
    peak = max(highest, gradients + decayed)
    kernels = walk.kernels()
    total = weights + optimiser + peak + kernels
    return Estimate(weights, gradients, optimiser, kept, max(0, peak - kept), kernels, total)


def _kept_averages(training: Training) -> int:
    """Numbers that the optimiser keeps for each parameter."""
    return {"sgd": int(training.momentum > 0), "rmsprop": 1, "adam": 2}[training.optimiser]


@dataclass(frozen=True)
class _Walk:
    """The forward and the backward pass of one batch, step by step. A step is meant by its place in the blueprint."""

    blueprint: Blueprint
    part: Slice
    batch: int
    size: _Format

    def peak(self) -> tuple[int, int]:
        """(bytes kept for the backward pass, highest point of activations and gradients together)."""
        kept: dict[object, int] = {}
        held_after: list[int] = []
        highest = gradients = 0
        for place in self.there:
            for tensor, amount in self._keeps(place):
                kept.setdefault(tensor, amount)
            held_after.append(sum(kept.values()))
            highest = max(highest, held_after[-1] + self.made[place] + self._workspace(place))
        for place, held in zip(reversed(self.there), reversed(held_after), strict=True):
            flowing = self.made[place] + self._given(place)
            highest = max(highest, held + gradients + flowing + self._workspace(place))
            gradients += self._own_numbers(place) * self.size.weight
        return sum(kept.values()), max(highest, gradients)

    def kernels(self) -> int:
        """What torch loads, and what its kernels take for their own use."""
        convolutions = sum(self._mixes_channels(place) for place in self.there)
        return self.size.loaded + convolutions * _PER_CONVOLUTION + int(self.part.entries * _PER_WEIGHT)

    @cached_property
    def there(self) -> list[int]:
        """The steps of the sub-model, which may be cut in depth."""
        whole, left = _layers(self.part.anatomy.arrays), _layers(self.part.shapes)
        return [place for place, step in enumerate(self.blueprint.steps) if step.name in left or step.name not in whole]

    @cached_property
    def made(self) -> list[int]:
        """Bytes of each step's result: layers with matrices make ``size.made``, others what they are given."""
        widths: list[int] = []
        for step in self.blueprint.steps:
            given = [widths[place] for place in step.inputs]
            widths.append(self.size.made if step.kind in _WITH_MATRICES else max(given, default=self.size.weight))
        return [self._numbers(place) * width for place, width in enumerate(widths)]

    @cached_property
    def owners(self) -> list[int]:
        """For each step the one whose memory its result lies in: views lie in their input's."""
        owners: list[int] = []
        for place, step in enumerate(self.blueprint.steps):
            owners.append(owners[step.inputs[0]] if step.kind in _VIEWS and step.inputs else place)
        return owners

    def _keeps(self, place: int) -> list[tuple[object, int]]:
        """(tensor, bytes) that autograd keeps on account of one step; the same tensor may be kept by several."""
        step = self.blueprint.steps[place]
        if step.kind in _VIEWS or step.kind in _KEEP_NOTHING:
            return []
        if step.kind in _KEEP_RESULT:
            return [(self.owners[place], self.made[place])]
        own = self._own(place)
        inputs = [self._kept_input(self.owners[given], step.kind) for given in step.inputs]
        return [*inputs, ((place, "own"), own)] if own else inputs

    def _kept_input(self, owner: int, user: str) -> tuple[object, int]:
        """The tensor itself; of one that is too wide for a layer with matrices, the copy that autocast makes."""
        cast = self._numbers(owner) * self.size.made
        if user in _WITH_MATRICES and cast < self.made[owner]:
            return (owner, "cast"), cast
        return owner, self.made[owner]

    def _own(self, place: int) -> int:
        """Bytes that a layer keeps of what it alone makes."""
        step = self.blueprint.steps[place]
        if step.kind.startswith(("MaxPool", "max_pool", "AdaptiveMaxPool")):
            return self._numbers(place) * _INDEX_BYTES
        if "ropout" in step.kind:
            return self.made[place]  # a mask as numbers
        own = tensors_of(step, self.part)
        if step.kind in RECURRENT:
            rows = sum(shape[0] for name, shape in own.items() if name.startswith("weight_ih"))
            return 2 * rows * self._tokens(place) * self.size.made
        if step.kind in ATTENTION:
            width = own["in_proj_weight"][0] // 3 if "in_proj_weight" in own else own["query.weight"][0]
            return 5 * width * self._tokens(place) * self.size.made
        return 0

    def _workspace(self, place: int) -> int:
        """Convolutions bring inputs, results and weights into a layout of their own; norms make temporaries."""
        kind = self.blueprint.steps[place].kind
        if kind in _CONVOLVING:
            return self.made[place] + self._given(place) + self._own_numbers(place) * 4
        return self.made[place] if kind in NORMS else 0

    def _mixes_channels(self, place: int) -> bool:
        """Whether it is a convolution, but not a depthwise one, whose kernels take next to nothing."""
        step = self.blueprint.steps[place]
        return step.kind in _CONVOLVING and tensors_of(step, self.part)["weight"][1] > 1

    def _numbers(self, place: int) -> int:
        return numbers(self.blueprint.steps[place], self.part, self.batch)

    def _own_numbers(self, place: int) -> int:
        return sum(map(math.prod, tensors_of(self.blueprint.steps[place], self.part).values()))

    def _given(self, place: int) -> int:
        return sum(self.made[given] for given in self.blueprint.steps[place].inputs)

    def _tokens(self, place: int) -> int:
        given = self.blueprint.steps[place].inputs[0]
        return self._numbers(given) // self.part.length(self.blueprint.steps[given].axes[-1])


def _layers(names: Iterable[str]) -> set[str]:
    """The modules that have the arrays of these names, and the modules around them."""
    split = [name.split(".") for name in names]
    return {".".join(parts[:depth]) for parts in split for depth in range(1, len(parts))}
