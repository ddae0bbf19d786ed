"""HeteroFL: weaker clients train the first channels of every layer.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients", ICLR
2021; equation 3.6 and algorithm 3.2 of the FedRolex thesis. Channel numbers are rounded up, as in the published code.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.algorithms.families.partial_training import PartialTraining
from fedquilt_common.submodels.selection import Rounding, prefix
from fedquilt_common.submodels.slices import Slice


@dataclass(frozen=True)
class HeteroFL(PartialTraining):
    """Partial training of the first channels; the other fields are those of ``PartialTraining``.

    Attributes:
        rounding: how a width becomes a number of channels.
    """

    rounding: Rounding = "ceil"

    def part(self, ctx: ServerContext, width: float) -> Slice:
        return prefix(ctx.anatomy, width, self.rounding)
