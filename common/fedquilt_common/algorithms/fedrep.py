"""FedRep: first the client's head is trained on the representation as it is, then the representation under that head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api import ClientContext, Reply, Task
from fedquilt_common.algorithms.families.private_head import PrivateHead, client_head
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.heads import Head, drop_arrays


@dataclass(frozen=True)
class FedRep(PrivateHead):
    """``head_epochs``: of the head, None means ``training.epochs``; ``body_epochs``: of the base, 1 in the paper.

    While the head is trained the base stands still, without dropout and with the statistics that its norms have.
    """

    head_epochs: int | None = None
    body_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body_epochs < 1 or (self.head_epochs is not None and self.head_epochs < 1):
            raise ValueError("head_epochs and body_epochs must be 1 or more")

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        learner, layers = ctx.learner, self.head_layers
        features = learner.features(task.arrays, ctx.data, layers)
        own = client_head(task.arrays, ctx, layers)
        head = learner.train(own, features, seed=ctx.seed, part=Head(layers), epochs=self.head_epochs)
        body = learner.train(
            {**task.arrays, **head.arrays},
            ctx.data,
            seed=derive_seed(ctx.seed, "body"),
            only=drop_arrays(task.arrays, self.names(ctx)).keys(),
            epochs=self.body_epochs,
        )
        return self.reply_arrays(body, ctx, head.seconds)
