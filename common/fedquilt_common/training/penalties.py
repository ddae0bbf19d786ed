"""Terms that clients add to their loss, as functions of the parameters; torch is loaded by those who train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedquilt_common.algorithm_api import Penalty
from fedquilt_common.types import Arrays


def proximal_penalty(anchor: Arrays, weight: float) -> Penalty:
    """weight / 2 * ||w - anchor||^2."""
    held: dict[str, Any] = {}

    def penalty(now: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        return weight / 2 * sum(((now[name] - _beside(now[name], anchor, name, held)) ** 2).sum() for name in now)

    return penalty


def linear_penalty(slope: Arrays) -> Penalty:
    """<slope, w>, over the parameters that ``slope`` has."""
    held: dict[str, Any] = {}

    def penalty(now: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        return sum((now[name] * _beside(now[name], slope, name, held)).sum() for name in now if name in slope)

    return penalty


def both(first: Penalty, second: Penalty) -> Penalty:
    """Their sum."""
    return lambda now, start: first(now, start) + second(now, start)


def _beside(parameter: Any, arrays: Arrays, name: str, held: dict[str, Any]) -> Any:
    """The array on the parameter's device and in its dtype; made once, for a penalty is computed in every step."""
    if name not in held:
        import torch

        held[name] = torch.from_numpy(np.array(arrays[name])).to(parameter.device, parameter.dtype)
    return held[name]
