"""Soft labels: mixup of the public samples, aggregation and quantisation of the clients' predictions for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Reply, ServerContext
from fedquilt_common.errors import ExperimentError
from fedquilt_common.types import Arrays, ClientId, Shapes

Logits = NDArray[np.float32]
"""Shape (n, classes)."""


def permutation(seed: int, count: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(count)``, int64 of shape (count,).

    It depends on the raw numbers of PCG64 only, which numpy promises not to change. It is therefore the same on every
    board and with every version.
    """
    order: NDArray[np.int64] = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
    return order


def mixup(x: NDArray[Any], seed: int, share: float) -> NDArray[np.float32]:
    """Mix each sample with another one (FedAKD thesis, equations 3.12 to 3.14).

    Args:
        x: samples of shape (n, ...).
        seed: of the permutation that selects the other samples.
        share: of the sample itself, in [0, 1].

    Returns:
        Float32 samples of the same shape.
    """
    mixed: NDArray[np.float32] = np.float32(share) * x + np.float32(1 - share) * x[permutation(seed, len(x))]
    return mixed.astype(np.float32, copy=False)


def mean_labels(replies: Mapping[ClientId, Reply], by_accuracy: bool) -> Arrays:
    """Average the clients' labels (FedAKD thesis, algorithm 1, line 16).

    Args:
        replies: each with float32 arrays of the same names and shapes, and the metric ``accuracy`` in [0, 1] if
            ``by_accuracy``.
        by_accuracy: weight by accuracy instead of equally; equal weights if every accuracy is 0.

    Returns:
        The mean in the shapes of the replies' arrays, bit-identical for the same replies.
    """
    weights = dict(zip(sorted(replies), client_weights(replies, by_accuracy), strict=True))
    return mean({client: replace(reply, weight=float(weights[client])) for client, reply in replies.items()})


def client_weights(replies: Mapping[ClientId, Reply], by_accuracy: bool) -> NDArray[np.float64]:
    """Return each client's weight in client order, float64 of shape (clients,), 1 in total.

    Args:
        replies: each with the metric ``accuracy`` in [0, 1] if ``by_accuracy``.
        by_accuracy: weight by accuracy instead of equally; equal weights if every accuracy is 0.
    """
    weights = np.array([replies[client].metrics["accuracy"] if by_accuracy else 1.0 for client in sorted(replies)])
    weights = weights if weights.any() else np.ones(len(weights))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


@dataclass(frozen=True)
class Quantiser:
    """Turns labels into codes of few bits, with the range that they span (FedAKD thesis, section 4.3).

    Attributes:
        bits: of a code, 1 to 16.
        ranges: what has a range of its own: each ``class``, each ``sample``, or the whole ``tensor``.
    """

    bits: int = 8
    ranges: Literal["class", "sample", "tensor"] = "class"

    @property
    def _axis(self) -> int | None:
        """The axis over which a range spans; None: both."""
        return {"class": 0, "sample": 1}.get(self.ranges)

    @property
    def _steps(self) -> int:
        return int(2**self.bits - 1)

    def shapes(self, samples: int, classes: int) -> Shapes:
        """Return the shapes of what ``encode`` returns for labels of shape (samples, classes)."""
        spans = {"class": classes, "sample": samples, "tensor": 1}[self.ranges]
        return {"codes": (samples, -(-classes * self.bits // 8)), "range": (2, spans)}

    def encode(self, labels: Logits) -> dict[str, NDArray[Any]]:
        """Round labels to the nearest step of their range; where all labels of a range are equal, they stay.

        Args:
            labels: float32 of shape (n, classes).

        Returns:
            ``codes``, uint8 of shape (n, bytes): a sample's codes one after another, high bits first. ``range``, the
            least and the greatest labels, float32 of shape (2, classes), (2, n) or (2, 1).
        """
        bounds = np.stack([np.ravel(end(labels, axis=self._axis)) for end in (np.min, np.max)]).astype(np.float32)
        low, width = self._spread(bounds)
        steps = np.rint((labels - low) / np.where(width > 0, width, 1.0) * self._steps)
        return {"codes": _pack(np.clip(steps, 0, self._steps).astype(np.uint16), self.bits), "range": bounds}

    def decode(self, arrays: Arrays, classes: int) -> Logits:
        """Return the labels that ``encode`` quantised, each within half a step of its range.

        Args:
            arrays: what ``encode`` returned.
            classes: how many the labels have.

        Returns:
            Float32 of shape (n, classes).
        """
        low, width = self._spread(np.asarray(arrays["range"]))
        codes = _unpack(np.asarray(arrays["codes"]), self.bits, classes)
        labels: Logits = (low + codes * (width / self._steps)).astype(np.float32)
        return labels

    def _spread(self, bounds: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the low ends and the widths of ranges, in shapes that broadcast with labels."""
        low, high = bounds.astype(np.float64)
        shape = (-1, 1) if self.ranges == "sample" else (1, -1)
        return low.reshape(shape), (high - low).reshape(shape)


def _pack(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    """Pack each row of codes, shape (n, classes), into bytes, shape (n, ceil(classes * bits / 8))."""
    places = np.arange(bits - 1, -1, -1, dtype=np.uint16)
    ones = (codes[:, :, None] >> places & 1).astype(np.uint8)
    return np.packbits(ones.reshape(len(codes), -1), axis=1)


def _unpack(packed: NDArray[np.uint8], bits: int, classes: int) -> NDArray[np.int64]:
    """Return the codes that ``_pack`` packed, shape (n, classes)."""
    ones = np.unpackbits(packed, axis=1, count=classes * bits).reshape(len(packed), classes, bits)
    return ones.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))


def confidence_weights(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return each client's weight for each sample, in proportion to the variance of its logits (Fed-ET, equation 3).

    Args:
        logits: shape (clients, n, classes).

    Returns:
        Float64 of shape (clients, n), 1 in total over the clients; all 0 where no client's logits vary.
    """
    return _normalise(np.var(logits, axis=2, ddof=1, dtype=np.float64))


def weighted_sum(logits: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum the clients' logits.

    Args:
        logits: shape (clients, n, classes).
        weights: of each client for each sample, shape (clients, n).

    Returns:
        Float64 of shape (n, classes).
    """
    total: NDArray[np.float64] = np.einsum("cnk,cn->nk", np.asarray(logits, dtype=np.float64), weights)
    return total


def dissenting_labels(logits: NDArray[Any], label: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the labels of the clients that predict another class than ``label`` (Fed-ET's diversity).

    Args:
        logits: shape (clients, n, classes).
        label: the class of the consensus, shape (n,).

    Returns:
        The dissenting clients' logits weighted by their variance, float64 of shape (n, classes); and the samples that
        have dissenting clients, bool of shape (n,).
    """
    dissents = logits.argmax(axis=2) != label
    variance = np.var(logits, axis=2, ddof=1, dtype=np.float64) * dissents
    return weighted_sum(logits, _normalise(variance)), dissents.any(axis=0)


def _normalise(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide by the sum over the clients, shape (clients, n); 0 where the sum is 0."""
    total = amounts.sum(axis=0)
    shares: NDArray[np.float64] = amounts / np.where(total > 0, total, 1.0)
    return shares


def sharpen(probabilities: NDArray[Any], temperature: float) -> NDArray[np.float32]:
    """Reduce the entropy of mean probabilities, as DS-FL does: softmax of the probabilities over a temperature.

    Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
    Training with Non-IID Private Data", IEEE Transactions on Mobile Computing 2023, equation 12.

    Args:
        probabilities: shape (n, classes).
        temperature: above 0; lower is sharper.

    Returns:
        Float32 of shape (n, classes).
    """
    return softmax(np.asarray(probabilities, dtype=np.float64) / temperature)


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Return probabilities over the classes, float32 of shape (n, classes), from logits of the same shape."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities


def check_can_distil(ctx: ServerContext) -> None:
    """Check that an experiment has what distillation needs.

    Raises:
        ExperimentError: the public set has no samples.
    """
    if not len(ctx.public):
        raise ExperimentError("data.public: there are no samples; set data.public.samples to 1 or more")


def check_can_mix(ctx: ServerContext) -> None:
    """Check that ``mixup`` suits the public samples: real numbers or bytes, not words or categories.

    Raises:
        ExperimentError: they are other whole numbers.
    """
    dtype = ctx.public.dtype
    if dtype.kind != "f" and dtype != np.uint8:
        raise ExperimentError(
            f"data.public: its samples are {dtype}, such as words or events, which have no mean that could be mixed; "
            "choose fedmd, which labels them as they are (with compress: true for cfedakd)"
        )
