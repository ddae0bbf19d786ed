"""What FedPer, FedRep and FedBABU share: the base is averaged, each client keeps a head of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from fedquilt_common.averages import mean
from fedquilt_common.evaluation import EVALUATE, NOTHING, counted, measured
from fedquilt_common.heads import check_head_layers, head_names, leave, of_both_heads, pick, shapes_of
from fedquilt_common.types import Arrays, Lab, Reply, Round, Site, State, Task, Trained


@dataclass(frozen=True)
class PrivateHead(ABC):
    """``head_layers``: the last linear layers, which each client has for itself.

    ``global_head``: what the global model has on top of the averaged base. ``first``: the head that the run began
    with, and no head ever leaves a board; ``mean``: the clients' heads are sent and averaged too, for nothing but the
    global model's accuracy, as the FedReb thesis measures it (section 5.3). Training begins with the first head, or a
    client's own, in both.
    """

    holdout: ClassVar[float] = 0.25

    head_layers: int = 1
    global_head: Literal["first", "mean"] = "first"

    def __post_init__(self) -> None:
        check_head_layers(self.head_layers)
        if self.global_head not in ("first", "mean"):
            raise ValueError(f"global_head = {self.global_head!r}: must be first or mean")

    @abstractmethod
    def train(self, task: Task, site: Site) -> Reply:
        """A client's part of a round."""

    def init(self, model: Mapping[str, NDArray[Any]], lab: Lab) -> State:
        head = head_names(lab.anatomy, self.head_layers)  # a model that has no such head is refused now
        return State(model, pick(model, head) if self.global_head == "mean" else {})

    def round(self, state: State, lab: Lab) -> Round:
        sent = self._sent(state.arrays, head_names(lab.anatomy, self.head_layers))
        arrays = {**state.arrays, **state.extra} if len(state.extra) else state.arrays
        task = Task("train", arrays, expect=shapes_of(arrays, sent))
        replies = yield dict.fromkeys(lab.select(), task)
        averaged = mean(replies, like=pick(arrays, sent))
        return (yield from measured(State({**state.arrays, **averaged}, state.extra), lab))

    def work(self, task: Task, site: Site) -> Reply:
        if task.kind == EVALUATE:
            return self.test(task.arrays, site) if len(site.test) else NOTHING
        return self.train(task, site)

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return lab.evaluate(state.arrays)

    def test(self, arrays: Arrays, site: Site) -> Reply:
        """Both heads on the features of the same base."""
        of_global, of_own = of_both_heads(arrays, site, self.head_layers)
        return counted(site.test.y, of_global, of_own)

    def names(self, site: Site) -> frozenset[str]:
        """The arrays of the head."""
        return head_names(site.anatomy, self.head_layers)

    def replied(self, trained: Trained, site: Site, seconds: float = 0.0) -> Reply:
        """Keep the head, send the rest. ``seconds`` of training beside those of ``trained``."""
        names = self.names(site)
        site.memory.update(pick(trained.arrays, names))
        metrics = {"loss": trained.loss, "train_seconds": seconds + trained.seconds}
        return Reply(pick(trained.arrays, self._sent(trained.arrays, names)), len(site.data), metrics)

    def _sent(self, arrays: Arrays, head: Collection[str]) -> Collection[str]:
        return leave(arrays, head if self.global_head == "first" else ()).keys()
