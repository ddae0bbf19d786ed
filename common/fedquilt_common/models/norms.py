"""The norms after convolutions, of which the parameter ``norm`` of several models chooses one.

- ``batch``: Ioffe and Szegedy, "Batch Normalization", ICML 2015, with running averages for the evaluation.
- ``static``: HeteroFL's batch norm without running averages (``static_norm``).
- ``group``: Wu and He, "Group Normalization", ECCV 2018. It normalises each sample by itself. It has no statistics to
  average, and it can be trained with differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.static_norm import StaticBatchNorm

Norm = Callable[[int], nn.Module]
"""Makes the norm of that many channels."""
NormName = Literal["batch", "static", "group"]


def make_group_norm(channels: int, groups: int = 2) -> nn.GroupNorm:
    """Make a group norm of two groups, as Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Args:
        channels: number of channels.
        groups: number of groups. If it does not divide ``channels``, their greatest common divisor.
    """
    return nn.GroupNorm(math.gcd(groups, channels), channels)


NORMS: Final[Mapping[NormName, Norm]] = {
    "batch": nn.BatchNorm2d,
    "static": StaticBatchNorm,
    "group": make_group_norm,
}


def choose_norm(name: NormName) -> Norm:
    """Return what makes the norms of this name.

    Raises:
        ExperimentError: there is no such norm.
    """
    if name not in list(NORMS):  # a list, because a wrong name may have no hash
        raise ExperimentError(f"model.norm = {name!r}: must be batch, static or group")
    return NORMS[name]


def find_running_norm(module: nn.Module) -> str | None:
    """Return the class of the first norm with running averages of its statistics; None if there is none."""
    return next((type(part).__name__ for part in module.modules() if _has_averages(part)), None)


def _has_averages(part: nn.Module) -> bool:
    return isinstance(part, _NormBase) and part.track_running_stats


def has_static_norm(module: nn.Module) -> bool:
    """Whether the module has a static batch norm, whose statistics training does not keep."""
    return any(isinstance(part, StaticBatchNorm) for part in module.modules())


def find_mixing_norm(module: nn.Module) -> str | None:
    """Return the first norm that mixes samples, in a batch or in running averages; None if there is none."""
    for part in module.modules():
        if isinstance(part, _BatchNorm | StaticBatchNorm):
            return type(part).__name__
        if _has_averages(part):
            return f"{type(part).__name__} with track_running_stats"
    return None
