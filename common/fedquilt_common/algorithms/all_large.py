"""All-Large: every client trains the whole model, whatever its board can bear; the upper bound of AdaptiveFL's Table 2.

FedAvg under the name that it has in section 4.2 of Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning
for Resource-Constrained AIoT Systems", DAC 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedquilt_common.algorithm_api import Reply, ServerContext, State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId


@dataclass(frozen=True)
class AllLarge(FedAvg):
    """No hyper-parameters."""

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        trained = {str(client): 1.0 for client in sorted(replies)}
        return replace(super().merge(state, replies, ctx), report={"trained": trained})
