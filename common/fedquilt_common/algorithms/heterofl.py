"""HeteroFL: weaker clients train the first channels of every layer.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients", ICLR
2021; the FedRolex thesis gives it as equation 3.6 and algorithm 3.3. Channel numbers are rounded up, as published.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.algorithms.families.partial_training import PartialTraining
from fedquilt_common.submodels.selection import Rounding, prefix
from fedquilt_common.submodels.slices import Slice


@dataclass(frozen=True)
class HeteroFL(PartialTraining):
    """``rounding``: how a width becomes a number of channels. The other fields are those of ``PartialTraining``."""

    rounding: Rounding = "ceil"

    def part(self, ctx: ServerContext, width: float) -> Slice:
        return prefix(ctx.anatomy, width, self.rounding)
