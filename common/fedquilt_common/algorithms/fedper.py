"""FedPer: clients train base and head together; the server averages the bases, and the heads stay on the boards.

Arivazhagan et al., "Federated Learning with Personalization Layers", CoRR 2019, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Task
from fedquilt_common.algorithms.families.private_head import PrivateHead, client_head


@dataclass(frozen=True)
class FedPer(PrivateHead):
    """A private head that is trained together with the base; ``head_layers`` are the paper's K_P layers."""

    declares: ClassVar[Declaration] = PrivateHead.declares

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        arrays = {**task.arrays, **client_head(ctx, self.head_layers)}
        return self.keep_head(ctx.learner.train(arrays, ctx.data, seed=ctx.seed), ctx)
