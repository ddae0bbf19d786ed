"""FedBABU: the federation trains the body under the initial head; each client tunes its head before it evaluates.

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
    """A head that no round trains; clients fine-tune it from the global model before each evaluation.

    The result is the client's personal model, in its private memory. While only the head is tuned, the base does not
    change: it has no dropout, and its norms use their stored statistics.

    Attributes:
        tune_epochs: epochs of fine-tuning before each evaluation.
        tunes: what is fine-tuned: the head, or the whole model.
    """

    tune_epochs: int = 10
    tunes: Literal["head", "whole"] = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune_epochs < 1:
            raise ValueError("tune_epochs must be 1 or more")

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        body = drop_arrays(task.arrays, self.head_arrays(ctx)).keys()
        trained = ctx.learner.train(task.arrays, ctx.data, seed=ctx.seed, only=body)
        sent = pick_arrays(trained.arrays, self._sent_names(trained.arrays, self.head_arrays(ctx)))
        return Reply(sent, len(ctx.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Fine-tune the global model, ``arrays`` in the model's shapes, and evaluate it before and after."""
        if self.tunes == "whole":
            return self._tune_and_test(arrays, ctx, ctx.data, ctx.test, None)
        data, test = (ctx.learner.features(arrays, samples, self.head_layers) for samples in (ctx.data, ctx.test))
        head = pick_arrays(arrays, self.head_arrays(ctx))
        return self._tune_and_test(head, ctx, data, test, Head(self.head_layers))

    def _tune_and_test(
        self, arrays: Mapping[str, NDArray[Any]], ctx: ClientContext, data: Examples, test: Examples, part: Head | None
    ) -> Reply:
        """Tune and test the model, or its head alone on the base's features."""
        learner = ctx.learner
        tuned = learner.train(arrays, data, seed=ctx.seed, part=part, epochs=self.tune_epochs)
        ctx.memory.update(tuned.arrays)
        (shared,), (personal,) = (learner.count(a, test, part) for a in (arrays, tuned.arrays))
        return evaluation_reply(len(test), shared, personal)
