"""FedBABU: the federation trains the body under the initial head; each client tunes its head before it evaluates.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, algorithm 1 and
section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedquilt_common.aggregation.client_evaluation import evaluation_reply
from fedquilt_common.algorithm_api import ClientContext, Declaration, Reply, Task, TrainingResult
from fedquilt_common.algorithms.families.private_head import PrivateHead
from fedquilt_common.submodels.heads import Head, drop_arrays, pick_arrays
from fedquilt_common.types import Arrays, Examples


@dataclass(frozen=True)
class FedBABU(PrivateHead):
    """A head that no round trains; clients fine-tune it from the global model before each evaluation.

    The result is the client's personal model, in its private memory. While only the head is tuned, the base does not
    change: it has no dropout, and its norms use their stored statistics. With ``global_head: mean``, clients also tune
    the head on the base that they have trained, and send it, because the FedReb thesis averages whole local models.

    Attributes:
        tune_epochs: epochs of fine-tuning before each evaluation.
        tunes: what is fine-tuned: the head, or the whole model.
    """

    declares: ClassVar[Declaration] = replace(PrivateHead.declares, sends_memory=False)

    tune_epochs: int = 10
    tunes: Literal["head", "whole"] = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune_epochs < 1:
            raise ValueError("tune_epochs must be 1 or more")

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        body = drop_arrays(task.arrays, self.head_arrays(ctx)).keys()
        trained = ctx.learner.train(self._with_initial_head(task.arrays, ctx), ctx.data, seed=ctx.seed, only=body)
        sent, seconds = pick_arrays(trained.arrays, body), trained.seconds
        if self.global_head == "mean":
            features = ctx.learner.features(trained.arrays, ctx.data, self.head_layers)
            tuned = self._tune(
                pick_arrays(trained.arrays, self.head_arrays(ctx)), ctx, features, Head(self.head_layers)
            )
            sent, seconds = {**sent, **tuned.arrays}, seconds + tuned.seconds
        return Reply(sent, len(ctx.data), {"loss": trained.loss, "train_seconds": seconds})

    def private_passes(self, epochs: int, rounds: int) -> int:
        """Return the passes over a client's samples in training; tuning for an evaluation needs samples of its own."""
        return rounds * (epochs + (self.tune_epochs if self.global_head == "mean" else 0))

    def test(self, arrays: Arrays, ctx: ClientContext) -> Reply:
        """Fine-tune the global model, ``arrays`` in the model's shapes, and evaluate it before and after."""
        if self.tunes == "whole":
            return self._tune_and_test(arrays, ctx, ctx.data, ctx.test, None)
        data, test = (ctx.learner.features(arrays, samples, self.head_layers) for samples in (ctx.data, ctx.test))
        head = pick_arrays(arrays, self.head_arrays(ctx))
        return self._tune_and_test(head, ctx, data, test, Head(self.head_layers))

    def _with_initial_head(self, arrays: Arrays, ctx: ClientContext) -> Arrays:
        if self.global_head == "first":
            return arrays  # its head is the initial one
        return {**arrays, **pick_arrays(ctx.first_model(), self.head_arrays(ctx))}

    def _tune_and_test(
        self, arrays: Arrays, ctx: ClientContext, data: Examples, test: Examples, part: Head | None
    ) -> Reply:
        """Tune and test the model, or its head alone on the base's features."""
        initial = pick_arrays(self._with_initial_head(arrays, ctx), arrays)
        tuned = self._tune(initial, ctx, data, part)
        ctx.memory.update(tuned.arrays)
        (shared,), (personal,) = (ctx.learner.count(a, test, part) for a in (arrays, tuned.arrays))
        return evaluation_reply(len(test), shared, personal)

    def _tune(self, arrays: Arrays, ctx: ClientContext, data: Examples, part: Head | None) -> TrainingResult:
        """Tune from the initial head on, so without the momentum of an earlier tuning."""
        learner = ctx.learner.with_settings(keep_optimiser=False)
        return learner.train(arrays, data, seed=ctx.seed, part=part, epochs=self.tune_epochs)
