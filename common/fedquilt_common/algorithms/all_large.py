"""All-Large: every client trains the whole model, whatever its board can bear; the upper bound of AdaptiveFL's Table 2.

FedAvg under the name that it has in section 4.2 of Jia et al., "AdaptiveFL: Adaptive Heterogeneous Federated Learning
for Resource-Constrained AIoT Systems", DAC 2024.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId, Lab, Reply, State, Task


@dataclass(frozen=True)
class AllLarge(FedAvg):
    """No hyper-parameters."""

    def round(self, state: State, lab: Lab) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]:
        trained: list[ClientId] = []
        steps = super().round(state, lab)
        tasks = next(steps)
        try:
            replies = yield tasks
            trained = sorted(replies)
            steps.send(replies)
        except StopIteration as done:
            state = done.value
        return replace(state, report={"trained": dict.fromkeys(map(str, trained), 1.0)})
