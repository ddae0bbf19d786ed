"""Cost of a sub-model: its parameters, and the operations of one forward pass, computed from the blueprint alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.trace import BATCH, Blueprint, Step

CONVOLUTIONS: Final = frozenset({"Conv1d", "Conv2d", "Conv3d"})
TRANSPOSED: Final = frozenset({"ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"})
NORMS: Final = frozenset({
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "GroupNorm", "LayerNorm", "RMSNorm", "StaticBatchNorm",
})  # fmt: skip
RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
ATTENTION: Final = frozenset({"MultiheadAttention", "Attention"})
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
    return Cost(params, sum(_operations(blueprint, step, part) for step in blueprint.steps))


def numbers(step: Step, part: Slice, batch: int = 1) -> int:
    """Count the numbers in the step's result for ``batch`` samples."""
    return math.prod(part.length(axis) for axis in step.axes) * batch // BATCH


def tensors_of(step: Step, part: Slice) -> dict[str, tuple[int, ...]]:
    """Shapes of the layer's own arrays by their names in the layer; empty for a function and for an absent layer."""
    prefix = f"{step.name}."
    return {name.removeprefix(prefix): shape for name, shape in part.shapes.items() if name.startswith(prefix)}


def _operations(blueprint: Blueprint, step: Step, part: Slice) -> int:
    made = numbers(step, part)
    if step.kind in NORMS:
        return _PER_NORMALISED * made
    own = {name: shape for name, shape in tensors_of(step, part).items() if "weight" in name}
    weights = sum(math.prod(shape) for shape in own.values())
    if not own:
        return 0
    if step.kind == "Linear" or step.kind in CONVOLUTIONS:
        return made * weights // own["weight"][0]
    taken = numbers(blueprint.steps[step.inputs[0]], part)
    if step.kind in TRANSPOSED:
        return taken * weights // own["weight"][0]
    tokens = taken // part.length(blueprint.steps[step.inputs[0]].axes[-1])
    if step.kind in RECURRENT:
        return tokens * weights
    if step.kind in ATTENTION:
        return tokens * weights + 2 * tokens * tokens * inner_width(own)
    return 0


def inner_width(own: dict[str, tuple[int, ...]]) -> int:
    """Width of all heads of an attention together, from the shapes of its arrays."""
    return own["in_proj_weight"][0] // 3 if "in_proj_weight" in own else own["query.weight"][0]
