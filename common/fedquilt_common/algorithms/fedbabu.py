"""FedBABU: only the body is trained and averaged, under the head that the run began with; heads are tuned for testing.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, algorithm 1 and
section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Reply, Task
from fedquilt_common.algorithms.families.private_head import PrivateHead
from fedquilt_common.submodels.heads import Head, drop_arrays, pick_arrays
from fedquilt_common.types import Arrays, Examples


@dataclass(frozen=True)
class FedBABU(PrivateHead):
    """``tune_epochs``: of fine-tuning before each evaluation, from the global model; ``tunes``: what is fine-tuned.

    The result is the client's own model, in its private memory. While only the head is tuned the base stands still,
    without dropout and with the statistics that its norms have.
    """

    tune_epochs: int = 10
    tunes: Literal["head", "whole"] = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune_epochs < 1:
            raise ValueError("tune_epochs must be 1 or more")

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        body = drop_arrays(task.arrays, self.names(ctx)).keys()
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, only=body)
        sent = pick_arrays(trained.arrays, self._sent(trained.arrays, self.names(ctx)))
        return Reply(sent, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        if self.tunes == "whole":
            return self._tested(arrays, ctx, ctx.data, ctx.test, None)
        data, test = (ctx.learner.features(arrays, some, self.head_layers) for some in (ctx.data, ctx.test))
        return self._tested(pick_arrays(arrays, self.names(ctx)), ctx, data, test, Head(self.head_layers))

    def _tested(
        self, arrays: Mapping[str, NDArray[Any]], ctx: ClientContext, data: Examples, test: Examples, part: Head | None
    ) -> Reply:
        """Of the model, or its head alone on the base's features."""
        learner = ctx.learner
        tuned = learner.train(arrays, data, seed=ctx.seed, part=part, epochs=self.tune_epochs)
        ctx.memory.update(tuned.arrays)
        (of_global,), (of_own,) = (learner.predict(one, test, part) for one in (arrays, tuned.arrays))
        return evaluation_reply(test.y, of_global, of_own)
