"""Federated Dropout: each client trains random channels of every layer, drawn anew each round.

Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements", CoRR 2018. The
FedRolex thesis gives it as equation 3.5 and algorithm 3.2. There is one draw for each channel group, so that layers
whose channels are added to one another keep the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithms.partial import PartialTraining
from fedquilt_common.slicing import Slice
from fedquilt_common.submodels import by_size, evaluate_levels, prefix, random_subset
from fedquilt_common.types import Lab, State


@dataclass(frozen=True)
class FederatedDropout(PartialTraining):
    """The fields are those of ``PartialTraining``; draws are made in client order."""

    mask_absent_classes: bool = False

    def part(self, lab: Lab, width: float) -> Slice:
        return random_subset(lab.anatomy, width, lab.rng)

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        levels = [(kind, prefix(lab.anatomy, self.widths[kind], "floor")) for kind in by_size(self.widths)]
        return evaluate_levels(state.arrays, lab, levels)
