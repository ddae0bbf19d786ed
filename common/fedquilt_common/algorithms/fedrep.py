"""FedRep: each client trains its head on the base as received, then the base under that head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Task
from fedquilt_common.algorithms.families.private_head import PrivateHead, client_head
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.heads import Head, drop_arrays


@dataclass(frozen=True)
class FedRep(PrivateHead):
    """A private head that is trained before the base.

    While the head trains, the base does not change: it has no dropout, and its norms use their stored statistics.

    Attributes:
        head_epochs: epochs of the head in a round; None: ``training.epochs``.
        body_epochs: epochs of the base in a round; 1 in the paper.
    """

    declares: ClassVar[Declaration] = PrivateHead.declares

    head_epochs: int | None = None
    body_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body_epochs < 1:
            raise ValueError("body_epochs must be 1 or more")
        if self.head_epochs is not None and self.head_epochs < 1:
            raise ValueError("head_epochs must be 1 or more; leave it out to use training.epochs")

    def private_passes(self, epochs: int, rounds: int) -> int:
        """Return the passes over a client's samples: those of the head, whose inputs follow from them, and the base."""
        return rounds * ((self.head_epochs or epochs) + self.body_epochs)

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        learner, layers = ctx.learner, self.head_layers
        features = learner.features(task.arrays, ctx.data, layers)
        start = client_head(ctx, layers)
        head = learner.train(start, features, seed=ctx.seed, part=Head(layers), epochs=self.head_epochs)
        body = learner.train(
            {**task.arrays, **head.arrays},
            ctx.data,
            seed=derive_seed(ctx.seed, "body"),
            only=drop_arrays(task.arrays, self.head_arrays(ctx)).keys(),
            epochs=self.body_epochs,
        )
        return self.keep_head(body, ctx, head.seconds)
