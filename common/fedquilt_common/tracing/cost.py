"""What a sub-model costs: its parameters, and the operations of one forward pass. Only arithmetic on the blueprint."""

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
    """``params``: numbers that are trained, tied ones once. ``flops`` of one sample's forward pass: a multiplication
    with its addition counts once, a normalised number as four (so are Table 1's of AdaptiveFL counted)."""

    params: int
    flops: int


def cost_of(blueprint: Blueprint, part: Slice) -> Cost:
    """The cost of the sub-model ``part``."""
    params = sum(math.prod(part.shapes[name]) for name in blueprint.parameters if name in part.shapes)
    return Cost(params, sum(_operations(blueprint, step, part) for step in blueprint.steps))


def numbers(step: Step, part: Slice, batch: int = 1) -> int:
    """How many numbers the step's result has for ``batch`` samples."""
    return math.prod(part.length(axis) for axis in step.axes) * batch // BATCH


def tensors_of(step: Step, part: Slice) -> dict[str, tuple[int, ...]]:
    """Shapes of the layer's own arrays, by their names within it; none for a function, or a layer that is cut away."""
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
    """All heads of an attention together."""
    return own["in_proj_weight"][0] // 3 if "in_proj_weight" in own else own["query.weight"][0]
