"""All-Large: every client trains the whole model, even if its board is too small for it.

FedAvg under the name that it has in section 4.2 of Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning
for Resource-Constrained AIoT Systems", DAC 2024; the upper bound of their Table 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedquilt_common.aggregation.client_evaluation import Evaluation, evaluate_locally, evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, ServerContext, State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Arrays, ClientId


@dataclass(frozen=True)
class AllLarge(FedAvg):
    """FedAvg that reports a width of 1 for each client, for comparison with sub-models; no hyper-parameters."""

    declares: ClassVar[Declaration] = replace(FedAvg.declares, coordinator_tests=True)

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        trained = {str(client): 1.0 for client in sorted(replies)}
        return replace(super().merge(state, replies, ctx), report={"trained": trained})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Evaluate the global model, ``arrays`` in the model's shapes; there are no others."""
        (counts,) = ctx.learner.count(arrays, ctx.test)
        return evaluation_reply(len(ctx.test), counts)

    def evaluate_clients(self, state: State, ctx: ServerContext) -> Evaluation:
        """Let the clients test the global model beside the coordinator, as sub-models do."""
        return (yield from evaluate_locally(state, ctx, self))
