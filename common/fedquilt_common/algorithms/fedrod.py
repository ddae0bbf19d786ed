"""FedROD: a generic head learnt with a class-balanced loss, and on the same features a personal head that adds to it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, section 4,
with linear personal heads. The personal head learns on detached features, its logits added to detached generic ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.evaluation import counted
from fedquilt_common.heads import (
    TwoHeads,
    check_head_layers,
    head_names,
    of_both_heads,
    own_head,
    with_second,
    without_second,
)
from fedquilt_common.losses import balanced_softmax, class_counts, cross_entropy
from fedquilt_common.types import Arrays, Lab, Loss, Reply, Site, State, Task


@dataclass(frozen=True)
class FedROD(FedAvg):
    """``balanced``: the generic head minimises the balanced softmax; without, plain cross entropy, and the global model
    is FedAvg's. ``head_layers``: the last linear layers, which each client has a second time for itself."""

    holdout: ClassVar[float] = 0.25

    head_layers: int = 1
    balanced: bool = True

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)

    def init(self, model: Mapping[str, NDArray[Any]], lab: Lab) -> State:
        head_names(lab.anatomy, self.head_layers)
        return State(model)

    def train(self, task: Task, site: Site) -> Reply:
        arranged = with_second(task.arrays, own_head(task.arrays, site, self.head_layers))
        heads = TwoHeads(self.head_layers, detached=True)
        trained = site.learner.train(arranged, site.data, seed=site.seed, loss=self.loss(site), part=heads)
        model, own = without_second(trained.arrays)
        site.memory.update(own)
        return Reply(model, len(site.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, site: Site) -> Reply:
        generic, added = of_both_heads(arrays, site, self.head_layers)
        return counted(site.test.y, generic, generic + added)

    def loss(self, site: Site) -> Loss:
        """The generic head's loss and the personal head's."""
        generic = balanced_softmax(class_counts(site)) if self.balanced else cross_entropy

        def both(outputs: Any, targets: Any) -> Any:
            logits, added = outputs
            return generic(logits, targets) + cross_entropy(logits.detach() + added, targets)

        return both
