"""Federated Dropout: each client trains random channels of every layer, drawn again in each round.

Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements", CoRR 2018; equation
3.5 and algorithm 3.3 of the FedRolex thesis. There is one draw for each channel group, so that layers whose channels
are added to one another keep the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.algorithms.families.partial_training import PartialTraining
from fedquilt_common.submodels.selection import prefix, random_subset
from fedquilt_common.submodels.slices import Slice


@dataclass(frozen=True)
class FederatedDropout(PartialTraining):
    """Partial training of random channels, drawn in client order; the fields are those of ``PartialTraining``."""

    mask_absent_classes: bool = False

    def part(self, ctx: ServerContext, width: float) -> Slice:
        return random_subset(ctx.anatomy, width, ctx.rng)

    def level_part(self, ctx: ServerContext, width: float) -> Slice:
        """Return the prefix of a width, because no draw stands for its level."""
        return prefix(ctx.anatomy, width, "floor")
