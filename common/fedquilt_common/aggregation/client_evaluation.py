"""Evaluation where the clients live: each tests the models on samples that it keeps for that, and only counts travel.

G is the global model on the union of the clients' test samples. P is each client's own model on its own test samples,
right answers and samples summed over the clients (FedReb thesis, section 5.3).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply, ServerContext, State, Task
from fedquilt_common.types import ClientId

EVALUATE: Final = "evaluate"
"""Kind of the task."""
_MOST: Final = 1e12
Which = Literal["global", "personal"]
BOTH: Final[tuple[Which, ...]] = ("global", "personal")
OWN: Final[tuple[Which, ...]] = ("personal",)
Evaluation = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]


def evaluate_on_clients(state: State, ctx: ServerContext, models: Sequence[Which] = BOTH) -> Evaluation:
    """The last exchange of a round: the new state with what all clients that are there measure of it, and in its
    report each client's own accuracy. The global model is sent only if it is one of ``models``.

    Nothing is asked in rounds that are not evaluated, and where the coordinator evaluates.
    """
    if not ctx.measures:
        return state
    sent = state.arrays if "global" in models else {}
    task = Task(EVALUATE, sent, expect={}, metrics=dict.fromkeys(_names(models), (0.0, _MOST)))
    replies = yield dict.fromkeys(ctx.fleet, task)
    counts = {client: reply.metrics for client, reply in replies.items()}
    report = {**state.report, "client_accuracy": _of_each(counts)}
    return replace(state, scores=pool_counts(counts, models), report=report)


def _names(models: Sequence[Which]) -> list[str]:
    return ["samples", *(f"{model}_{count}" for model in models for count in ("right", "loss"))]


def _of_each(counts: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Each client's own accuracy, of those that have samples."""
    return {
        str(client): min(1.0, said["personal_right"] / said["samples"])
        for client, said in counts.items()
        if said["samples"]
    }


def evaluation_reply(
    y: NDArray[Any], of_global: NDArray[np.float32] | None = None, of_personal: NDArray[np.float32] | None = None
) -> Reply:
    """A client's reply, from the logits, shape (n, classes), of the global and of its own model for its n samples; of
    one of the two if there is no other."""
    counts = {"samples": float(len(y))}
    for name, logits in (("global", of_global), ("personal", of_personal)):
        if logits is None:
            continue
        counts[f"{name}_right"] = float((logits.argmax(axis=1) == y).sum())
        counts[f"{name}_loss"] = _cross_entropy(logits.astype(np.float64), y)
    return Reply({}, metrics=counts)


def _cross_entropy(logits: NDArray[np.float64], y: NDArray[Any]) -> float:
    """Summed over the samples; finite, so that it can travel."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    right = np.take_along_axis(shifted, y.astype(np.int64)[:, None], axis=1)[:, 0]
    total = float((np.log(np.exp(shifted).sum(axis=1)) - right).sum())
    return min(total, _MOST) if total == total else _MOST


NOTHING: Final = Reply({}, metrics=dict.fromkeys(_names(BOTH), 0.0))
"""Of a client that has no samples for testing."""


def pool_counts(counts: Mapping[ClientId, Mapping[str, float]], models: Sequence[Which] = BOTH) -> dict[str, float]:
    """The accuracies over all samples, the mean losses, and how many samples and clients that were.

    ``accuracy`` and ``loss`` are those of the first of ``models``.
    """
    sums = {name: sum(said[name] for said in counts.values()) for name in _names(models)}
    samples = sums["samples"]
    tested = {"tested_samples": samples, "tested_clients": float(sum(said["samples"] > 0 for said in counts.values()))}
    if not samples:
        return tested
    right = {model: min(1.0, sums[f"{model}_right"] / samples) for model in models}
    losses = {model: sums[f"{model}_loss"] / samples for model in models}
    return {
        "accuracy": right[models[0]], "loss": losses[models[0]],
        **{f"{model}_accuracy": value for model, value in right.items()},
        **({"personal_loss": losses["personal"]} if "personal" in losses else {}), **tested,
    }  # fmt: skip
