"""FedPer: clients train base and head together; the base is averaged, the head stays where it is.

Arivazhagan et al., "Federated Learning with Personalization Layers", CoRR 2019, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithms.private_head import PrivateHead
from fedquilt_common.heads import own_head
from fedquilt_common.types import Reply, Site, Task


@dataclass(frozen=True)
class FedPer(PrivateHead):
    """``head_layers`` are the paper's K_P personalization layers."""

    def train(self, task: Task, site: Site) -> Reply:
        arrays = {**task.arrays, **own_head(task.arrays, site, self.head_layers)}
        return self.replied(site.learner.train(arrays, site.data, seed=site.seed), site)
