"""Lists the arrays that stay whole in every sub-model, and refuses a model whose arrays all do."""

from __future__ import annotations

import math

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy

_EXAMPLES = 3


def whole_share(anatomy: Anatomy) -> float:
    """Return the share of a model's numbers, in [0, 1], that belong to no channel group: every width has them."""
    kept = sum(math.prod(_whole_lengths(array)) for array in anatomy.arrays.values())
    return kept / max(1, anatomy.entries)


def _whole_lengths(array: ArrayAnatomy) -> list[int]:
    return [sum(segment.inner for segment in axis if segment.group is None) for axis in array.axes]


def cut_dimensions(array: ArrayAnatomy) -> list[int]:
    """Return the dimensions of an array that a sub-model may cut."""
    return [place for place, axis in enumerate(array.axes) if any(segment.group is not None for segment in axis)]


def describe_whole(anatomy: Anatomy) -> dict[str, str]:
    """Return what stays whole in each array that is not cut as usual, and why; by name."""
    return {name: _describe(anatomy.arrays[name], reason) for name, reason in anatomy.kept_whole.items()}


def _describe(array: ArrayAnatomy, reason: str) -> str:
    dimensions = cut_dimensions(array)
    if not dimensions:
        return f"not cut: {reason}"
    return f"cut only in dimension {' and '.join(map(str, dimensions))}: {reason}"


def require_groups(anatomy: Anatomy) -> None:
    """Check that sub-models of a model differ from it.

    Raises:
        UncuttableModelError: it has neither channels that can be cut nor exits.
    """
    if anatomy.groups or anatomy.exits_after:
        return
    reasons = [f"{name} ({reason})" for name, reason in list(anatomy.kept_whole.items())[:_EXAMPLES]]
    change = f"change {', '.join(reasons)} (docs/slicing.md)" if reasons else "add a hidden layer that is no output"
    raise UncuttableModelError(
        f"the model has no channels that can be cut, so each sub-model would be the whole model; {change}, or choose "
        "an algorithm that sends whole models, such as fedavg"
    )
