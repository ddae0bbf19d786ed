"""An algorithm around another one, such as secure aggregation: it changes the rounds and leaves the rest."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithm_api.algorithm import Algorithm, ClientContext, Round, ServerContext
from fedquilt_common.algorithm_api.records import Declaration, Reply, State, Task, declaration_of
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class AlgorithmWrapper:
    """The algorithm itself in all respects; subclasses change what differs.

    Attributes:
        inner: the algorithm.
    """

    inner: Algorithm

    @property
    def declares(self) -> Declaration:
        """What the algorithm declares."""
        return declaration_of(self.inner)

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return self.inner.init(model, ctx)

    def round(self, state: State, ctx: ServerContext) -> Round:
        return self.inner.round(state, ctx)

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        return self.inner.work(task, ctx)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return self.inner.evaluate(state, ctx)
