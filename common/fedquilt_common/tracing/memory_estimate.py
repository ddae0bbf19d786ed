"""Estimate the memory that training a sub-model takes, from its blueprint alone.

The forward pass keeps what the backward pass needs; the backward pass frees it again while gradients grow. The peak is
the highest point of that walk. ``benchmarks/memory.py`` compares it with measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from fedquilt_common.privacy.sample_batches import largest_draw, samples_at_once
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.cost import (
    ATTENTION,
    CONVOLUTIONS,
    LINEAR,
    MATRIX_PRODUCTS,
    NORMS,
    RECURRENT,
    TRANSPOSED,
    inner_width,
    list_present,
    numbers,
    tensors_of,
    weight_shape,
)

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.tracing.trace import Blueprint

_VIEWS: Final = frozenset({
    "Flatten", "Unflatten", "flatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "getitem",
    "chunk", "split", "expand", "movedim", "unflatten", "contiguous", "detach", "Identity", "t", "size", "narrow",
    "unbind", "view_as", "reshape_as",
})  # fmt: skip
_KEEP_RESULT: Final = frozenset({
    "ReLU", "relu", "Sigmoid", "sigmoid", "Tanh", "tanh", "Softmax", "softmax", "LogSoftmax", "log_softmax", "exp",
    "sqrt", "rsqrt", "scaled_dot_product_attention",
})  # fmt: skip
_KEEP_NOTHING: Final = frozenset({
    "add", "iadd", "sub", "isub", "cat", "concat", "stack", "mean", "sum", "input", "Scaler", "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d", "neg", "pad", "truediv",
})  # fmt: skip
_CONVOLUTIONS: Final = CONVOLUTIONS | TRANSPOSED
_WITH_MATRICES: Final = _CONVOLUTIONS | RECURRENT | ATTENTION | LINEAR | MATRIX_PRODUCTS
_INDEX_BYTES: Final = 8
_PER_CONVOLUTION: Final = 350 << 10
"""Bytes that each convolution's kernels allocate and do not free (350 KiB); measured, like ``_FORMATS``."""
_PER_WEIGHT: Final = 0.6
"""Bytes that the heap and the matrix kernels lose for each weight."""
_PER_GATE: Final = 4
"""Numbers that a recurrent layer keeps for each gate and instant, those of its backward pass included; measured."""


@dataclass(frozen=True)
class Estimate:
    """Memory of training, in bytes.

    Received arrays do not count: they stay in a file, from which one array at a time is read.

    Attributes:
        weights: parameters and buffers, with half-precision copies.
        gradients: of all parameters. With privacy, the sums of clipped gradients too.
        optimiser: its averages.
        activations: all that the backward pass needs.
        temporaries: what else is in memory at the peak, gradients included.
        kernels: what torch loads and allocates for itself.
        total: peak of a first training beyond what the process had before: weights, optimiser, activations,
            temporaries and kernels.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    temporaries: int
    kernels: int
    total: int


@dataclass(frozen=True)
class _Format:
    """Bytes of a number in one precision.

    Attributes:
        weight: of the weights in memory.
        result: of results of layers with matrices.
        copies: of half-precision copies of the weights, which autocast keeps until the step ends.
        loaded: bytes that torch loads for a first training.
    """

    weight: int
    result: int
    copies: int
    loaded: int


_FORMATS: Final[Mapping[str, _Format]] = {
    "fp32": _Format(4, 4, 0, 12 << 20),
    "fp16": _Format(2, 2, 0, 12 << 20),
    "bf16": _Format(2, 2, 0, 20 << 20),
    "amp": _Format(4, 2, 2, 13 << 20),
}


def memory_to_train(blueprint: Blueprint, part: Slice, training: Training, *, private: bool = False) -> Estimate:
    """Estimate the memory that a training process needs for the sub-model ``part``.

    Args:
        blueprint: the traced model.
        part: the sub-model.
        training: batch, precision and optimiser.
        private: whether it trains with differential privacy, which computes the gradient of each sample.
    """
    size = _FORMATS[training.precision]
    params = sum(math.prod(part.shapes[name]) for name in blueprint.parameters if name in part.shapes)
    batch = min(largest_draw(training.batch), samples_at_once(params)) if private else training.batch
    walk = _TrainingWalk(blueprint, part, batch, size, private)
    weights = part.entries * size.weight + params * size.copies
    optimiser = params * size.weight * _kept_averages(training)
    gradients = params * size.weight * (2 if private else 1)
    largest = max(map(math.prod, part.shapes.values()), default=0) * size.weight
    temporary = largest * ((training.weight_decay > 0) + (training.optimiser != "sgd"))
    kept, highest = walk.peak()
    peak = max(highest, gradients + temporary)
    kernels = walk.kernels()
    total = weights + optimiser + peak + kernels
    return Estimate(weights, gradients, optimiser, kept, max(0, peak - kept), kernels, total)


def _kept_averages(training: Training) -> int:
    """Numbers that the optimiser keeps for each parameter."""
    kind = training.optimiser.removesuffix("-keras")
    return {"sgd": int(training.momentum > 0), "rmsprop": 1, "adam": 2}[kind]


@dataclass(frozen=True)
class _TrainingWalk:
    """The forward and the backward pass of one batch, step by step; steps are positions in the blueprint."""

    blueprint: Blueprint
    part: Slice
    batch: int
    size: _Format
    private: bool

    def peak(self) -> tuple[int, int]:
        """Return the bytes kept for the backward pass, and the peak of activations and gradients together."""
        kept: dict[object, int] = {}
        kept_after: list[int] = []
        highest = gradients = 0
        sums = sum(self.gradient_numbers) * self.size.weight if self.private else 0
        for place in self.places:
            for tensor, amount in self._tensors_kept(place):
                kept.setdefault(tensor, amount)
            kept_after.append(sum(kept.values()))
            highest = max(highest, kept_after[-1] + self.result_bytes[place] + self._workspace(place))
        for place, held in zip(reversed(self.places), reversed(kept_after), strict=True):
            flowing = self.result_bytes[place] + self._input_bytes(place)
            highest = max(highest, held + gradients + flowing + self._workspace(place))
            gradients += self.gradient_numbers[place] * self.size.weight * (1 + self._rows)
        return sum(kept.values()), max(highest, gradients) + sums

    def kernels(self) -> int:
        """Bytes that torch loads, and that its kernels allocate for themselves."""
        convolutions = sum(self._mixes_channels(place) for place in self.places)
        return self.size.loaded + convolutions * _PER_CONVOLUTION + int(self.part.entries * _PER_WEIGHT)

    @property
    def _rows(self) -> int:
        """Samples whose own gradients are kept until the step clips them."""
        return self.batch if self.private else 0

    @cached_property
    def places(self) -> list[int]:
        """Positions of the sub-model's steps, some of which it may lack if it is cut in depth."""
        return list_present(self.blueprint, self.part)

    @cached_property
    def gradient_numbers(self) -> list[int]:
        """For each step, the size of its arrays that no later step uses: the backward pass allocates them there."""
        last = {name: place for place in self.places for name in self.blueprint.steps[place].arrays}
        found = [0] * len(self.blueprint.steps)
        for name, place in last.items():
            found[place] += math.prod(self.part.shapes.get(name, (0,)))
        return found

    @cached_property
    def result_bytes(self) -> list[int]:
        """Bytes of each step's result: layers with matrices use ``size.result`` a number, others keep their inputs'."""
        widths: list[int] = []
        for step in self.blueprint.steps:
            given = [widths[place] for place in step.inputs]
            widths.append(self.size.result if step.kind in _WITH_MATRICES else max(given, default=self.size.weight))
        return [self._numbers(place) * width for place, width in enumerate(widths)]

    @cached_property
    def owners(self) -> list[int]:
        """For each step, the step whose memory its result uses: a view uses that of its input."""
        owners: list[int] = []
        for place, step in enumerate(self.blueprint.steps):
            owners.append(owners[step.inputs[0]] if step.kind in _VIEWS and step.inputs else place)
        return owners

    def _tensors_kept(self, place: int) -> list[tuple[object, int]]:
        """Tensors and bytes that autograd keeps for one step; several steps may keep the same tensor."""
        step = self.blueprint.steps[place]
        if step.kind in _VIEWS or step.kind in _KEEP_NOTHING:
            return []
        if step.kind in _KEEP_RESULT:
            return [(self.owners[place], self.result_bytes[place])]
        own = self._own_bytes(place)
        inputs = [self._kept_input(self.owners[given], step.kind) for given in step.inputs]
        return [*inputs, ((place, "own"), own)] if own else inputs

    def _kept_input(self, owner: int, user: str) -> tuple[object, int]:
        """The tensor itself, or the copy that autocast makes if it is too wide for a layer with matrices."""
        cast = self._numbers(owner) * self.size.result
        if user in _WITH_MATRICES and cast < self.result_bytes[owner]:
            return (owner, "cast"), cast
        return owner, self.result_bytes[owner]

    def _own_bytes(self, place: int) -> int:
        """Bytes of the layer's own temporary results that it keeps for the backward pass."""
        step = self.blueprint.steps[place]
        if step.kind.startswith(("MaxPool", "max_pool", "AdaptiveMaxPool")):
            return self._numbers(place) * _INDEX_BYTES
        if "ropout" in step.kind:
            return self.result_bytes[place]  # a mask as numbers
        own = tensors_of(step, self.part)
        if step.kind in RECURRENT:
            rows = sum(shape[0] for name, shape in own.items() if name.startswith("weight_ih"))
            return _PER_GATE * rows * self._tokens(place) * self.size.result
        if step.kind in ATTENTION:
            return 5 * inner_width(own) * self._tokens(place) * self.size.result
        return 0

    def _workspace(self, place: int) -> int:
        """Bytes of temporaries: convolutions convert inputs, results and weights to another layout; norms need some."""
        kind = self.blueprint.steps[place].kind
        if kind in _CONVOLUTIONS:
            layouts = self.result_bytes[place] + self._input_bytes(place) + self._own_numbers(place) * 4
            return layouts + (self._unfolded_bytes(place) if self.private else 0)
        return self.result_bytes[place] if kind in NORMS else 0

    def _unfolded_bytes(self, place: int) -> int:
        """Bytes of a convolution's windows, from which the gradients of single samples are computed."""
        step = self.blueprint.steps[place]
        weight = weight_shape(self.blueprint, step, self.part)
        if not weight:
            return 0
        channels = self.part.length(self.blueprint.steps[step.inputs[0]].axes[1])
        return channels * math.prod(weight[2:]) * (self._numbers(place) // weight[0]) * self.size.result

    def _mixes_channels(self, place: int) -> bool:
        """Whether it is a convolution that is not depthwise; kernels of depthwise ones take almost no memory."""
        step = self.blueprint.steps[place]
        weight = weight_shape(self.blueprint, step, self.part) if step.kind in _CONVOLUTIONS else ()
        return bool(weight) and weight[1] > 1

    def _numbers(self, place: int) -> int:
        return numbers(self.blueprint.steps[place], self.part, self.batch)

    def _own_numbers(self, place: int) -> int:
        return sum(map(math.prod, tensors_of(self.blueprint.steps[place], self.part).values()))

    def _input_bytes(self, place: int) -> int:
        return sum(self.result_bytes[given] for given in self.blueprint.steps[place].inputs)

    def _tokens(self, place: int) -> int:
        given = self.blueprint.steps[place].inputs[0]
        return self._numbers(given) // self.part.length(self.blueprint.steps[given].axes[-1])
