"""FedAvg: every client trains the global model on its own data, the server takes the mean weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedquilt_common.averages import mean
from fedquilt_common.evaluation import EVALUATE, NOTHING, counted, measured
from fedquilt_common.types import Arrays, ClientId, Lab, Penalty, Reply, Round, Site, State, Task


@dataclass(frozen=True)
class FedAvg:
    """FedAvg has no hyper-parameters beyond the experiment's ``training``."""

    holdout: ClassVar[float] = 0.0
    """The part of its samples that each client keeps for testing, where the experiment does not say."""

    def init(self, model: Arrays, lab: Lab) -> State:
        return State(model)

    def round(self, state: State, lab: Lab) -> Round:
        replies = yield dict.fromkeys(lab.select(), self.ask(state, lab))
        return (yield from measured(self.merge(state, replies, lab), lab))

    def ask(self, state: State, lab: Lab) -> Task:
        """What the clients of a round are to train."""
        return Task("train", state.arrays)

    def merge(self, state: State, replies: Mapping[ClientId, Reply], lab: Lab) -> State:
        """The new state from what the clients have trained."""
        return State(mean(replies, like=state.arrays))

    def work(self, task: Task, site: Site) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, site) if len(site.test) else NOTHING
        return self.train(task, site)

    def train(self, task: Task, site: Site) -> Reply:
        """A client's part of a round."""
        trained = site.learner.train(task.arrays, site.data, seed=site.seed, penalty=self.penalty())
        return Reply(trained.arrays, len(site.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, site: Site) -> Reply:
        """How the global model ``arrays`` and the client's own do on its test samples; here they are the same."""
        logits = site.learner.predict(arrays, site.test)[-1]
        return counted(site.test.y, logits, logits)

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return lab.evaluate(state.arrays)

    def penalty(self) -> Penalty | None:
        """What the client adds to its loss; FedAvg adds nothing."""
        return None
