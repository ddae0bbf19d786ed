"""FedAvg: every client trains the global model on its own data, the server takes the mean weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.averages import mean
from fedquilt_common.types import Arrays, Lab, Penalty, Reply, Round, Site, State, Task


@dataclass(frozen=True)
class FedAvg:
    """FedAvg has no hyper-parameters beyond the experiment's ``training``."""

    def init(self, model: Arrays, lab: Lab) -> State:
        return State(model)

    def round(self, state: State, lab: Lab) -> Round:
        replies = yield {client: Task("train", state.arrays) for client in lab.select()}
        return State(mean(replies, like=state.arrays))

    def work(self, task: Task, site: Site) -> Reply:
        trained = site.learner.train(task.arrays, site.data, seed=site.seed, penalty=self.penalty())
        return Reply(trained.arrays, len(site.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return lab.evaluate(state.arrays)

    def penalty(self) -> Penalty | None:
        """What the client adds to its loss; FedAvg adds nothing."""
        return None
