"""Evaluation by the clients: each tests the models on samples that it keeps for testing, and sends counts only.

G is the global model on the union of the shares' test samples, even of shares that no client has (FedReb thesis, Table
6.2). P is each client's own model on its own test samples. The counts of all clients are added, and the learning task
computes its metrics from the sums (for accuracies: FedReb thesis, section 5.3). The local accuracy is the global model
on each client's samples, beside the coordinator's evaluation (FedRolex thesis, Tables 3.3 and 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from fedquilt_common.aggregation.exact_numbers import BITS, from_bits, to_bits
from fedquilt_common.algorithm_api import (
    Algorithm,
    ClientContext,
    OutputViews,
    Reply,
    ServerContext,
    State,
    Task,
    deepest_exit,
)
from fedquilt_common.learning_tasks import LearningTask, ScoreCounts, add_counts
from fedquilt_common.types import ClientId, Shapes

EVALUATE: Final = "evaluate"
"""Kind of the task."""
_MOST_SAMPLES: Final = 1e12
_LARGEST: Final = 1e150
"""Limit of a client's count, so that sums over clients are finite."""
Evaluated = Literal["global", "personal"]
BOTH: Final[tuple[Evaluated, ...]] = ("global", "personal")
PERSONAL: Final[tuple[Evaluated, ...]] = ("personal",)
GLOBAL: Final[tuple[Evaluated, ...]] = ("global",)
Evaluation = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]


def evaluate_on_clients(state: State, ctx: ServerContext, models: Sequence[Evaluated] = BOTH) -> Evaluation:
    """Let all connected clients evaluate, as the last exchange of a round.

    There is no exchange in rounds that are not evaluated, or where the coordinator evaluates.

    Args:
        state: the state to evaluate.
        ctx: the server context of the round.
        models: what the clients evaluate; the global model is sent only if it is one of them.

    Returns:
        A generator for ``yield from``. It returns the state with the pooled scores. Its report has ``client_<metric>``,
        such as ``client_accuracy``: the learning task's main metric of each client's own model.
    """
    if not ctx.measures:
        return state
    task = ctx.learning_task
    shapes: Shapes = {_array_name(model, name): shape for model in models for name, shape in task.count_shapes.items()}
    request = Task(
        EVALUATE,
        state.arrays if "global" in models else {},
        expect=(shapes, {}),
        metrics={"samples": (0.0, _MOST_SAMPLES)},
        dtypes=dict.fromkeys(shapes, BITS),
    )
    replies = yield dict.fromkeys(ctx.fleet, request)
    report = {**state.report, f"client_{task.main.name}": client_scores(replies, task, models[-1])}
    spare = count_spare(state, ctx) if models == BOTH else None
    return replace(state, scores=pool_scores(replies, task, models, spare), report=report)


def evaluate_locally(state: State, ctx: ServerContext, algorithm: Algorithm) -> Evaluation:
    """Let all connected clients test the whole global model, beside the coordinator's evaluation.

    There is no exchange in rounds that are not evaluated, or where the clients do not evaluate.

    Args:
        state: the state to evaluate.
        ctx: the server context of the round.
        algorithm: its ``evaluate`` gives the coordinator's scores.

    Returns:
        A generator for ``yield from``. It returns the state with the coordinator's scores and, if a client has test
        samples, ``local_<metric>`` and ``mean_local_<metric>``, such as ``local_accuracy``: the learning task's main
        metric over all clients' samples, and its plain mean over the clients. Its report has ``client_<metric>``.
    """
    tested = yield from evaluate_on_clients(state, ctx, GLOBAL)
    if not tested.scores:
        return tested
    main = ctx.learning_task.main.name
    own = list(tested.report[f"client_{main}"].values())
    local = {name: tested.scores[name] for name in ("tested_samples", "tested_clients")}
    if own:
        local |= {f"local_{main}": tested.scores[f"global_{main}"], f"mean_local_{main}": sum(own) / len(own)}
    return replace(tested, scores={**algorithm.evaluate(state, ctx), **local})


def count_locally(task: Task, ctx: ClientContext, views: OutputViews = deepest_exit) -> Reply:
    """Test the global model of an ``EVALUATE`` task on the client's test samples.

    Args:
        task: has the model.
        ctx: of the task.
        views: returns the outputs to test, in a sequence of one; by default those of the deepest exit.
    """
    if not len(ctx.test):
        return NO_COUNTS
    (counts,) = ctx.learner.count(task.arrays, ctx.test, views=views)
    return evaluation_reply(len(ctx.test), counts)


def count_spare(state: State, ctx: ServerContext) -> ScoreCounts | None:
    """Count for the global model on the test samples of the shares that no client has; None if there are none."""
    if not len(ctx.spare_test):
        return None
    (counts,) = ctx.learner.count(state.arrays, ctx.spare_test)
    return counts


def evaluation_reply(
    samples: int, global_counts: ScoreCounts | None = None, personal_counts: ScoreCounts | None = None
) -> Reply:
    """Return what a client sends of its evaluation.

    Args:
        samples: number of its test samples.
        global_counts: of the global model, as ``Learner.count`` returns them; None: it is not evaluated.
        personal_counts: of the client's own model; None: it is not evaluated.

    Returns:
        A reply with the metric ``samples`` and an array ``<model>_<count>`` for each count.
        The counts travel as their bits.
    """
    counts: dict[Evaluated, ScoreCounts | None] = {"global": global_counts, "personal": personal_counts}
    arrays = {
        _array_name(model, name): to_bits(count)
        for model, found in counts.items() if found is not None
        for name, count in found.items()
    }  # fmt: skip
    return Reply(arrays, metrics={"samples": float(samples)})


NO_COUNTS: Final = Reply({}, metrics={"samples": 0.0})
"""The reply of a client without test samples."""


def client_scores(
    replies: Mapping[ClientId, Reply], task: LearningTask, model: Evaluated = "personal"
) -> dict[str, float]:
    """Return the main metric of a model on each client's test samples, for clients that have some.

    One that is not finite is left out: the client's model has diverged.

    Args:
        replies: as ``evaluation_reply`` returns them.
        task: computes the metric.
        model: the client's own model, or the global one.
    """
    scores = {client: task.scores(_counts(reply, task, model)) for client, reply in _tested(replies).items()}
    found = {str(client): one[task.main.name] for client, one in scores.items() if one}
    return {client: value for client, value in found.items() if math.isfinite(value)}


def pool_scores(
    replies: Mapping[ClientId, Reply],
    task: LearningTask,
    models: Sequence[Evaluated] = BOTH,
    spare: ScoreCounts | None = None,
) -> dict[str, float]:
    """Add the clients' counts, and compute scores from the sums.

    Args:
        replies: as ``evaluation_reply`` returns them; those of clients without test samples have no arrays.
        task: computes the metrics.
        models: the models that the clients evaluated.
        spare: further counts of the global model, on test samples of no client.

    Returns:
        The scores of the first of ``models`` under their own names; as ``<model>_<metric>`` all of a personal model
        and the main one of a global model; ``tested_samples`` and ``tested_clients``. Without samples, the last two
        only. The same bits in whatever order the replies came.
    """
    tested = _tested(replies)
    scores = {
        "tested_samples": sum(replies[client].metrics["samples"] for client in tested),
        "tested_clients": float(len(tested)),
    }
    for model in models if tested else ():
        further = [spare] if spare is not None and model == "global" else []
        found = task.scores(add_counts([*(_counts(reply, task, model) for reply in tested.values()), *further]))
        scores |= found if model == models[0] else {}
        is_plain = model == models[0] == "global"  # plain names of personal models may get another model's scores
        named = [task.main.name] if is_plain else [metric.name for metric in task.metrics]
        scores |= {f"{model}_{name}": found[name] for name in named if name in found}
    return scores


def _array_name(model: Evaluated, count: str) -> str:
    return f"{model}_{count}"


def _tested(replies: Mapping[ClientId, Reply]) -> dict[ClientId, Reply]:
    """Return the replies with counts, in client order."""
    return {client: replies[client] for client in sorted(replies) if len(replies[client].arrays)}


def _counts(reply: Reply, task: LearningTask, model: Evaluated) -> ScoreCounts:
    return {name: from_bits(np.asarray(reply.arrays[_array_name(model, name)]), _LARGEST) for name in task.count_shapes}
