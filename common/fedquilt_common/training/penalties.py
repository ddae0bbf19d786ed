"""Penalties that algorithms add to a client's loss. They import torch only when training calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedquilt_common.algorithm_api import Penalty
from fedquilt_common.types import Arrays


def proximal_penalty(anchor: Arrays, weight: float) -> Penalty:
    """Pull parameters towards ``anchor``: weight / 2 * ||w - anchor||^2 over all parameters.

    Args:
        anchor: every parameter by name, in the shapes of the model.
        weight: factor of the penalty.
    """
    tensors: dict[str, Any] = {}

    def penalty(now: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        return weight / 2 * sum(((now[name] - _to_tensor(now[name], anchor, name, tensors)) ** 2).sum() for name in now)

    return penalty


def pull_to_start(weight: float) -> Penalty:
    """Pull parameters towards those with which training started: weight / 2 * ||w - w_start||^2.

    Args:
        weight: factor of the penalty.
    """
    return lambda now, start: weight / 2 * sum(((now[name] - start[name]) ** 2).sum() for name in now)


def linear_penalty(slope: Arrays) -> Penalty:
    """Add the inner product <slope, w>.

    Args:
        slope: arrays in the shapes of the parameters of the same names; other parameters are left out.
    """
    tensors: dict[str, Any] = {}

    def penalty(now: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        return sum((now[name] * _to_tensor(now[name], slope, name, tensors)).sum() for name in now if name in slope)

    return penalty


def add_penalties(first: Penalty, second: Penalty) -> Penalty:
    """Return the sum of two penalties as one."""
    return lambda now, start: first(now, start) + second(now, start)


def _to_tensor(parameter: Any, arrays: Arrays, name: str, tensors: dict[str, Any]) -> Any:
    """Return the array on the parameter's device and in its dtype; converted once, for all steps."""
    if name not in tensors:
        import torch

        tensors[name] = torch.from_numpy(np.array(arrays[name])).to(parameter.device, parameter.dtype)
    return tensors[name]
