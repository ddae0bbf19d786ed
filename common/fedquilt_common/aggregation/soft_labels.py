"""Soft labels: what is mixed, agreed and quantised between clients that share samples instead of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Reply, ServerContext
from fedquilt_common.errors import ExperimentError
from fedquilt_common.types import Arrays, ClientId

Logits = NDArray[np.float32]
"""Shape (n, classes)."""
LEVELS: Final = 255


def permutation(seed: int, count: int) -> NDArray[np.int64]:
    """A permutation of ``count`` things, the same on every board and version: only the raw numbers of PCG64, which
    numpy promises not to change, decide."""
    order: NDArray[np.int64] = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
    return order


def mixup(x: NDArray[Any], seed: int, share: float) -> NDArray[np.float32]:
    """``share`` of each sample and the rest of another one: FedAKD thesis, equations 3.12 to 3.14.

    ``x`` has shape (n, ...); so has what comes back, in fp32.
    """
    mixed: NDArray[np.float32] = np.float32(share) * x + np.float32(1 - share) * x[permutation(seed, len(x))]
    return mixed.astype(np.float32, copy=False)


def mean_labels(replies: Mapping[ClientId, Reply], by_accuracy: bool) -> Arrays:
    """The mean of the clients' labels, or that weighted by the metric ``accuracy`` (FedAKD thesis, algorithm 1, line
    16). Where nobody is ever right, all weigh alike."""
    weights = dict(zip(sorted(replies), client_weights(replies, by_accuracy), strict=True))
    return mean({client: replace(reply, weight=float(weights[client])) for client, reply in replies.items()})


def client_weights(replies: Mapping[ClientId, Reply], by_accuracy: bool) -> NDArray[np.float64]:
    """How much each client weighs, in client order, 1 in all: alike, or by accuracy where anybody is ever right."""
    given = np.array([replies[client].metrics["accuracy"] if by_accuracy else 1.0 for client in sorted(replies)])
    given = given if given.any() else np.ones(len(given))
    return np.asarray(given / given.sum(), dtype=np.float64)


def quantise(labels: Logits) -> dict[str, NDArray[Any]]:
    """Eight bits for each label, ``codes`` of shape (n, classes), and least and greatest label of each class, ``range``
    of shape (2, classes): CFedAKD (thesis, section 4.3).

    Rounded to the nearest step of a class; a class whose labels are all the same keeps them.
    """
    bounds = np.stack([labels.min(axis=0), labels.max(axis=0)]).astype(np.float32)
    low, width = bounds[0].astype(np.float64), np.ptp(bounds.astype(np.float64), axis=0)
    steps = (labels - low) / np.where(width > 0, width, 1.0) * LEVELS
    return {"codes": np.clip(np.rint(steps), 0, LEVELS).astype(np.uint8), "range": bounds}


def dequantise(arrays: Arrays) -> Logits:
    """The labels that ``quantise`` has made smaller, each within half a step of its class."""
    low, high = np.asarray(arrays["range"], dtype=np.float64)
    labels: Logits = (low + np.asarray(arrays["codes"]) * ((high - low) / LEVELS)).astype(np.float32)
    return labels


def confidence_weights(logits: NDArray[Any]) -> NDArray[np.float64]:
    """How much each client's labels, shape (clients, n, classes), are to weigh for each sample, shape (clients, n): in
    proportion to their variance over the classes (Fed-ET, equation 3)."""
    return _shares(np.var(logits, axis=2, ddof=1, dtype=np.float64))


def weighted_sum(logits: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over the clients, shape (n, classes)."""
    summed: NDArray[np.float64] = np.einsum("cnk,cn->nk", np.asarray(logits, dtype=np.float64), weights)
    return summed


def dissenting_labels(logits: NDArray[Any], label: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(labels of those clients who see another class than ``label``, shape (n, classes), weighted by their variance;
    for which samples there are such clients): Fed-ET's diversity."""
    others = logits.argmax(axis=2) != label
    variance = np.var(logits, axis=2, ddof=1, dtype=np.float64) * others
    return weighted_sum(logits, _shares(variance)), others.any(axis=0)


def _shares(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each client's part for each sample; 0 where nobody has anything."""
    total = amounts.sum(axis=0)
    shares: NDArray[np.float64] = amounts / np.where(total > 0, total, 1.0)
    return shares


def sharpen(probabilities: NDArray[Any], temperature: float) -> NDArray[np.float32]:
    """DS-FL's entropy reduction: softmax of the mean probabilities over ``temperature``.

    Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
    Training with Non-IID Private Data", IEEE Transactions on Mobile Computing 2023, equation 12.
    """
    return softmax(np.asarray(probabilities, dtype=np.float64) / temperature)


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Over the classes."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities


def check_can_distil(ctx: ServerContext, algorithm: object) -> None:
    """Raises ExperimentError where there are no classes to have logits of, or no public samples."""
    if not ctx.classes:
        name = type(algorithm).__name__.lower()
        raise ExperimentError(
            f"algorithm.name = {name}: models exchange opinions of classes, but the data set has none"
        )
    if not len(ctx.public):
        raise ExperimentError("data.public: there are no samples")
