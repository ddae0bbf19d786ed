"""Evaluation where the clients live: each tests the models on samples that it keeps for that, and only counts travel.

G is the global model on the union of the clients' test samples. P is each client's own model on its own test samples,
right answers and samples summed over the clients (FedReb thesis, section 5.3).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import ClientId, Lab, Reply, State, Task

EVALUATE: Final = "evaluate"
"""Kind of the task."""
_MOST: Final = 1e12
_NAMES: Final = ("samples", "global_right", "global_loss", "personal_right", "personal_loss")
_COUNTS: Final = dict.fromkeys(_NAMES, (0.0, _MOST))
Evaluation = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]


def measured(state: State, lab: Lab) -> Evaluation:
    """The last exchange of a round: the new state with what all clients that are there measure of it.

    Nothing is asked in rounds that are not evaluated, and where the coordinator evaluates.
    """
    if not lab.measures:
        return state
    task = Task(EVALUATE, state.arrays, expect={}, metrics=_COUNTS)
    replies = yield dict.fromkeys(lab.fleet, task)
    return replace(state, scores=pooled({client: reply.metrics for client, reply in replies.items()}))


def counted(y: NDArray[Any], of_global: NDArray[np.float32], of_personal: NDArray[np.float32]) -> Reply:
    """A client's reply, from the logits, shape (n, classes), of the global and of its own model for its n samples."""
    counts = {"samples": float(len(y))}
    for name, logits in (("global", of_global), ("personal", of_personal)):
        counts[f"{name}_right"] = float((logits.argmax(axis=1) == y).sum())
        counts[f"{name}_loss"] = _cross_entropy(logits.astype(np.float64), y)
    return Reply({}, metrics=counts)


def _cross_entropy(logits: NDArray[np.float64], y: NDArray[Any]) -> float:
    """Summed over the samples; finite, so that it can travel."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    right = np.take_along_axis(shifted, y.astype(np.int64)[:, None], axis=1)[:, 0]
    total = float((np.log(np.exp(shifted).sum(axis=1)) - right).sum())
    return min(total, _MOST) if total == total else _MOST


NOTHING: Final = Reply({}, metrics=dict.fromkeys(_COUNTS, 0.0))
"""Of a client that has no samples for testing."""


def pooled(counts: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Both accuracies over all samples, the mean losses, and how many samples and clients that were."""
    sums = {name: sum(said[name] for said in counts.values()) for name in _COUNTS}
    samples = sums["samples"]
    tested = {"tested_samples": samples, "tested_clients": float(sum(said["samples"] > 0 for said in counts.values()))}
    if not samples:
        return tested
    of = {name: sums[name] / samples for name in _COUNTS}
    right = {name: min(1.0, of[f"{name}_right"]) for name in ("global", "personal")}
    return {
        "accuracy": right["global"], "loss": of["global_loss"],
        "global_accuracy": right["global"], "personal_accuracy": right["personal"],
        "personal_loss": of["personal_loss"], **tested,
    }  # fmt: skip
