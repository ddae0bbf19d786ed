"""Evaluation by the clients: each tests the models on samples that it keeps for testing, and sends counts only.

G is the global model on the union of the clients' test samples. P is each client's own model on its own test samples.
The counts of all clients are added, and the learning task computes its metrics from the sums (for accuracies: FedReb
thesis, section 5.3).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply, ServerContext, State, Task
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
        dtypes=dict.fromkeys(shapes, "int64"),
    )
    replies = yield dict.fromkeys(ctx.fleet, request)
    own = client_scores(replies, task) if "personal" in models else {}
    report = {**state.report, f"client_{task.main.name}": own}
    return replace(state, scores=pool_scores(replies, task, models), report=report)


def evaluation_reply(
    samples: int, global_counts: ScoreCounts | None = None, personal_counts: ScoreCounts | None = None
) -> Reply:
    """Return what a client sends of its evaluation.

    Args:
        samples: number of its test samples.
        global_counts: of the global model, as ``Learner.count`` returns them; None: it is not evaluated.
        personal_counts: of the client's own model; None: it is not evaluated.

    Returns:
        A reply with the metric ``samples`` and an array ``<model>_<count>`` for each count. Floating-point arrays are
        narrowed on their way, so the counts travel as the bits of float64 in int64.
    """
    counts: dict[Evaluated, ScoreCounts | None] = {"global": global_counts, "personal": personal_counts}
    arrays = {
        _array_name(model, name): np.asarray(count, np.float64).view(np.int64)
        for model, found in counts.items() if found is not None
        for name, count in found.items()
    }  # fmt: skip
    return Reply(arrays, metrics={"samples": float(samples)})


NO_COUNTS: Final = Reply({}, metrics={"samples": 0.0})
"""The reply of a client without test samples."""


def client_scores(replies: Mapping[ClientId, Reply], task: LearningTask) -> dict[str, float]:
    """Return the main metric of each client's own model, for clients with test samples.

    Args:
        replies: as ``evaluation_reply`` returns them.
        task: computes the metric.
    """
    scores = {client: task.scores(_counts(reply, task, "personal")) for client, reply in _tested(replies).items()}
    return {str(client): found[task.main.name] for client, found in scores.items() if found}


def pool_scores(
    replies: Mapping[ClientId, Reply], task: LearningTask, models: Sequence[Evaluated] = BOTH
) -> dict[str, float]:
    """Add the clients' counts, and compute scores from the sums.

    Args:
        replies: as ``evaluation_reply`` returns them; those of clients without test samples have no arrays.
        task: computes the metrics.
        models: the models that the clients evaluated.

    Returns:
        The scores of the first of ``models`` under their own names, its main metric and those of the other model also
        as ``<model>_<metric>``, ``personal_loss``, ``tested_samples`` and ``tested_clients``. Without samples, the last
        two only. The same bits in whatever order the replies came.
    """
    tested = _tested(replies)
    scores = {
        "tested_samples": sum(replies[client].metrics["samples"] for client in tested),
        "tested_clients": float(len(tested)),
    }
    for model in models if tested else ():
        found = task.scores(add_counts(_counts(reply, task, model) for reply in tested.values()))
        scores |= found if model == models[0] else {}
        named = _own_names(model, task) if model == models[0] else [metric.name for metric in task.metrics]
        scores |= {f"{model}_{name}": found[name] for name in named if name in found}
    return scores


def _own_names(model: Evaluated, task: LearningTask) -> list[str]:
    """Return the metrics that the first model has under its own name too."""
    return [task.main.name] if model == "global" else [task.main.name, "loss"]


def _array_name(model: Evaluated, count: str) -> str:
    return f"{model}_{count}"


def _tested(replies: Mapping[ClientId, Reply]) -> dict[ClientId, Reply]:
    """Return the replies with counts, in client order."""
    return {client: replies[client] for client in sorted(replies) if len(replies[client].arrays)}


def _counts(reply: Reply, task: LearningTask, model: Evaluated) -> ScoreCounts:
    return {name: _decode(np.asarray(reply.arrays[_array_name(model, name)])) for name in task.count_shapes}


def _decode(bits: NDArray[Any]) -> NDArray[np.float64]:
    """Return a count from its bits; a client may send any, so what is not finite becomes finite."""
    return np.clip(np.nan_to_num(bits.view(np.float64)), -_LARGEST, _LARGEST)
