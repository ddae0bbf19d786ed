"""HeteroFL: weaker clients train the first channels of every layer.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients", ICLR
2021; the FedRolex thesis gives it as equation 3.6 and algorithm 3.3. Channel numbers are rounded up, as published.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithms.partial import PartialTraining
from fedquilt_common.slicing import Slice
from fedquilt_common.submodels import Rounding, prefix
from fedquilt_common.types import Lab


@dataclass(frozen=True)
class HeteroFL(PartialTraining):
    """``rounding``: how a width becomes a number of channels. The other fields are those of ``PartialTraining``."""

    rounding: Rounding = "ceil"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounding not in ("floor", "ceil"):
            raise ValueError(f"rounding = {self.rounding!r}: must be floor or ceil")

    def part(self, lab: Lab, width: float) -> Slice:
        return prefix(lab.anatomy, width, self.rounding)
