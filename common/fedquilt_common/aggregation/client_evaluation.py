"""Evaluation by the clients: each tests the models on samples that it keeps for testing, and sends counts only.

G is the global model on the union of the clients' test samples. P is each client's own model on its own test samples;
correct answers and samples are summed over the clients (FedReb thesis, section 5.3).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply, ServerContext, State, Task
from fedquilt_common.learning_tasks.class_scores import clip_counts, count_classes, score_counts
from fedquilt_common.types import ClientId, Shapes

EVALUATE: Final = "evaluate"
"""Kind of the task."""
_LARGEST: Final = 1e12
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
        A generator for ``yield from``. It returns the state with the pooled scores, and with ``client_accuracy`` in its
        report: the accuracy of each client's own model.
    """
    if not ctx.measures:
        return state
    sent = state.arrays if "global" in models else {}
    shapes: Shapes = {_class_counts_of(model): (3, ctx.classes) for model in models}
    bounds = dict.fromkeys(_metric_names(models), (0.0, _LARGEST))
    task = Task(EVALUATE, sent, expect=(shapes, {}), metrics=bounds, dtypes=dict.fromkeys(shapes, "int64"))
    replies = yield dict.fromkeys(ctx.fleet, task)
    counts = {client: reply.metrics for client, reply in replies.items()}
    report = {**state.report, "client_accuracy": _client_accuracies(counts)}
    return replace(state, scores={**pool_counts(counts, models), **pool_classes(replies, models)}, report=report)


def _class_counts_of(model: Evaluated) -> str:
    """Return the name of the reply's array with a model's counts for each class."""
    return f"{model}_classes"


def _metric_names(models: Sequence[Evaluated]) -> list[str]:
    return ["samples", *(f"{model}_{count}" for model in models for count in ("right", "loss"))]


def _client_accuracies(counts: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Return the accuracy of each client's own model, for clients with test samples."""
    return {
        str(client): min(1.0, metrics["personal_right"] / metrics["samples"])
        for client, metrics in counts.items()
        if metrics["samples"]
    }


def evaluation_reply(
    y: NDArray[Any],
    global_logits: NDArray[np.float32] | None = None,
    personal_logits: NDArray[np.float32] | None = None,
) -> Reply:
    """Count a client's correct answers and sum its losses.

    Args:
        y: classes of the n test samples, int64 of shape (n,).
        global_logits: the global model's outputs, float32 of shape (n, classes); None: it is not evaluated.
        personal_logits: the client's own model's outputs, float32 of shape (n, classes); None: it is not evaluated.

    Returns:
        A reply with an array ``<model>_classes`` for each model, the counts for each class: int64 of shape (3, classes)
        as ``count_classes`` returns them. Its metrics are ``samples``, ``<model>_right`` and ``<model>_loss``.
    """
    counts, classes = {"samples": float(len(y))}, dict[str, NDArray[np.int64]]()
    models: dict[Evaluated, NDArray[np.float32] | None] = {"global": global_logits, "personal": personal_logits}
    for name, logits in models.items():
        if logits is None:
            continue
        answers = logits.argmax(axis=1)
        counts[f"{name}_right"] = float((answers == y).sum())
        counts[f"{name}_loss"] = _cross_entropy(logits.astype(np.float64), y)
        classes[_class_counts_of(name)] = count_classes(y, answers, logits.shape[1]).astype(np.int64)
    return Reply(classes, metrics=counts)


def _cross_entropy(logits: NDArray[np.float64], y: NDArray[Any]) -> float:
    """Return the sum over the samples; at most ``_LARGEST``, so that it is finite."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    right = np.take_along_axis(shifted, y.astype(np.int64)[:, None], axis=1)[:, 0]
    total = float((np.log(np.exp(shifted).sum(axis=1)) - right).sum())
    return min(total, _LARGEST) if total == total else _LARGEST


NO_COUNTS: Final = Reply({}, metrics=dict.fromkeys(_metric_names(BOTH), 0.0))
"""The reply of a client without test samples."""


def pool_classes(replies: Mapping[ClientId, Reply], models: Sequence[Evaluated] = BOTH) -> dict[str, float]:
    """Pool the clients' counts for each class.

    Args:
        replies: as ``evaluation_reply`` returns them; those of clients without test samples have no arrays.
        models: the models that the clients evaluated.

    Returns:
        The scores of ``score_counts`` for the first of ``models``; of another one the two means, such as
        ``personal_macro_f1``.
    """
    scores: dict[str, float] = {}
    for model in models:
        name = _class_counts_of(model)
        counts = [clip_counts(np.asarray(reply.arrays[name])) for reply in replies.values() if name in reply.arrays]
        found = score_counts(np.sum(counts, axis=0)) if counts else {}
        means = {f"{model}_{key}": found[key] for key in ("balanced_accuracy", "macro_f1") if found}
        scores |= found if model == models[0] else means
    return scores


def pool_counts(counts: Mapping[ClientId, Mapping[str, float]], models: Sequence[Evaluated] = BOTH) -> dict[str, float]:
    """Pool the clients' counts into scores over all samples.

    Args:
        counts: each client's metrics as ``evaluation_reply`` returns them.
        models: the models that the clients evaluated.

    Returns:
        ``<model>_accuracy`` in [0, 1] of each model, ``personal_loss``, ``tested_samples`` and ``tested_clients``;
        ``accuracy`` and ``loss`` are those of the first of ``models``. Without samples, the last two counts only.
    """
    sums = {name: sum(metrics[name] for metrics in counts.values()) for name in _metric_names(models)}
    samples = sums["samples"]
    clients = float(sum(metrics["samples"] > 0 for metrics in counts.values()))
    tested = {"tested_samples": samples, "tested_clients": clients}
    if not samples:
        return tested
    right = {model: min(1.0, sums[f"{model}_right"] / samples) for model in models}
    losses = {model: sums[f"{model}_loss"] / samples for model in models}
    return {
        "accuracy": right[models[0]], "loss": losses[models[0]],
        **{f"{model}_accuracy": value for model, value in right.items()},
        **({"personal_loss": losses["personal"]} if "personal" in losses else {}), **tested,
    }  # fmt: skip
