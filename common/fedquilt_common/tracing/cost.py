"""Cost of a sub-model: its parameters, and the operations of one forward pass, computed from the blueprint alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedquilt_common.submodels.slices import Axis, Slice
from fedquilt_common.tracing.trace import BATCH, Blueprint, Step

CONVOLUTIONS: Final = frozenset({"Conv1d", "Conv2d", "Conv3d", "conv1d", "conv2d", "conv3d"})
LINEAR: Final = frozenset({"Linear", "linear"})
TRANSPOSED: Final = frozenset({"ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"})
NORMS: Final = frozenset({
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "GroupNorm", "LayerNorm", "RMSNorm", "StaticBatchNorm", "layer_norm",
})  # fmt: skip
RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})
ATTENTION: Final = frozenset({"MultiheadAttention", "Attention"})
MATRIX_PRODUCTS: Final = frozenset({"matmul", "bmm", "mm"})
PRODUCTS: Final = MATRIX_PRODUCTS | {"scaled_dot_product_attention"}
_PER_NORMALISED: Final = 4


@dataclass(frozen=True)
class Cost:
    """Cost of a sub-model.

    Attributes:
        params: numbers that are trained; tied ones count once.
        flops: operations of one sample's forward pass. A multiplication with its addition counts as one, a normalised
            number as four, as in Table 1 of AdaptiveFL.
    """

    params: int
    flops: int


def cost_of(blueprint: Blueprint, part: Slice) -> Cost:
    """Cost of the sub-model ``part``."""
    params = sum(math.prod(part.shapes[name]) for name in blueprint.parameters if name in part.shapes)
    present = [blueprint.steps[place] for place in list_present(blueprint, part)]
    return Cost(params, sum(_operations(blueprint, step, part) for step in present))


def list_present(blueprint: Blueprint, part: Slice) -> list[int]:
    """List the positions of the steps that the sub-model runs.

    If it is cut in depth, it lacks the steps of later stages and exits: those that take an array or a result that it
    lacks. It also lacks a step without arrays if only such steps take the result, such as the first norm of a stage.
    """
    places = range(len(blueprint.steps))
    lacking: set[int] = set()
    takers: dict[int, list[int]] = {}
    for place, step in enumerate(blueprint.steps):
        if not (part.absent.isdisjoint(step.arrays) and lacking.isdisjoint(step.inputs)):
            lacking.add(place)
        for given in step.inputs:
            takers.setdefault(given, []).append(place)
    for place in reversed(places):
        if place in takers and not blueprint.steps[place].arrays and lacking.issuperset(takers[place]):
            lacking.add(place)
    return [place for place in places if place not in lacking]


def numbers(step: Step, part: Slice, batch: int = 1) -> int:
    """Count the numbers in the step's result for ``batch`` samples."""
    made = _size(step.axes, part)
    return made * batch // BATCH if step.batched else made


def _size(axes: Sequence[Axis], part: Slice) -> int:
    return math.prod(part.length(axis) for axis in axes)


def tensors_of(step: Step, part: Slice) -> dict[str, tuple[int, ...]]:
    """Shapes of the step's arrays that the sub-model has, by their names in the layer."""
    prefix = f"{step.name}."
    return {name.removeprefix(prefix): part.shapes[name] for name in step.arrays if name in part.shapes}


def weight_shape(blueprint: Blueprint, step: Step, part: Slice) -> tuple[int, ...]:
    """Shape of the weight of a linear step or a convolution; () if the sub-model has no such array."""
    weights = [shape for shape in tensors_of(step, part).values() if len(shape) > 1]
    if not weights and len(step.inputs) > 1:  # a function's, which other steps computed
        return tuple(part.length(axis) for axis in blueprint.steps[step.inputs[1]].axes)
    return weights[-1] if weights else ()


def _operations(blueprint: Blueprint, step: Step, part: Slice) -> int:
    made = numbers(step, part)
    if step.kind in NORMS:
        return _PER_NORMALISED * made
    if step.kind in LINEAR | CONVOLUTIONS | TRANSPOSED:
        weight = weight_shape(blueprint, step, part)
        count = numbers(blueprint.steps[step.inputs[0]], part) if step.kind in TRANSPOSED else made
        return count * math.prod(weight[1:]) if weight else 0
    if step.kind in RECURRENT | ATTENTION:
        return _count_in_tokens(blueprint, step, part)
    if step.kind in MATRIX_PRODUCTS:
        return made * part.length(step.operands[0][-1])
    if step.kind in PRODUCTS:
        query, key, value = (operand[-2:] for operand in step.operands[:3])
        return made // part.length(value[-1]) * part.length(key[-2]) * (part.length(query[-1]) + part.length(value[-1]))
    return 0


def _count_in_tokens(blueprint: Blueprint, step: Step, part: Slice) -> int:
    """Operations of a recurrent layer or an attention, which has its weights for each token."""
    own = {name: shape for name, shape in tensors_of(step, part).items() if "weight" in name}
    tokens = numbers(step, part) // part.length(step.axes[-1])
    everywhere = sum(math.prod(shape) for shape in own.values())
    if not own or step.kind not in ATTENTION:
        return tokens * everywhere
    keys = _count_keys(blueprint, step, part)
    projections = _key_projections(own)
    return tokens * (everywhere - projections) + keys * projections + 2 * tokens * keys * inner_width(own)


def _count_keys(blueprint: Blueprint, step: Step, part: Slice) -> int:
    """Tokens of a sample to which an attention attends."""
    given = blueprint.steps[step.inputs[min(1, len(step.inputs) - 1)]]
    return numbers(given, part) // part.length(given.axes[-1])


def _key_projections(own: dict[str, tuple[int, ...]]) -> int:
    """Operations for each token to which an attention attends, for its key and its value."""
    if "in_proj_weight" in own:
        return math.prod(own["in_proj_weight"]) * 2 // 3
    return math.prod(own["key.weight"]) + math.prod(own["value.weight"])


def inner_width(own: dict[str, tuple[int, ...]]) -> int:
    """Width of all heads of an attention together, from the shapes of its arrays."""
    return own["in_proj_weight"][0] // 3 if "in_proj_weight" in own else own["query.weight"][0]
