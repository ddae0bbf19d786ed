"""Scores of a model on labelled samples: accuracy or R2, and the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedquilt_common.class_scores import count_classes, score_counts
from fedquilt_common.errors import DataUnavailableError


def match_shape(output: Tensor, target: Tensor) -> Tensor:
    """Reshape a model's output to that of its regression targets.

    Args:
        output: shape (n,) or (n, ...).
        target: shape (n, outputs).

    Returns:
        ``output`` in the shape (n, outputs), with its own dtype.

    Raises:
        DataUnavailableError: the model has another number of outputs than the data set.
    """
    output = output.reshape(len(output), -1)
    if output.shape != target.shape:
        raise DataUnavailableError(
            f"the model has {output.shape[1]} outputs for a sample, but the data set has {target.shape[1]} targets; "
            "choose a model with as many outputs"
        )
    return output


def score_classes(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Score a classifier.

    Args:
        outputs: batches of logits, float32 of shape (n, classes), and classes, int64 of shape (n,).

    Returns:
        ``accuracy`` in [0, 1]; ``loss``, the mean cross entropy computed in float64; and the scores that treat all
        classes alike, see ``score_counts``.
    """
    target = torch.cat([target for _, target in outputs]).numpy()
    answers = torch.cat([output.argmax(dim=1) for output, _ in outputs]).numpy()
    loss = sum(float(functional.cross_entropy(o.double(), t, reduction="sum")) for o, t in outputs)
    counts = count_classes(target, answers, outputs[0][0].shape[1])
    right, count = int((answers == target).sum()), len(target)
    return {"accuracy": right / count, "loss": loss / count, **score_counts(counts)}


def score_values(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Score a regression model.

    Args:
        outputs: batches of outputs and targets, both float32 of shape (n, outputs).

    Returns:
        ``r2``, the mean over the outputs, where a target that never changes counts as 0 because there is nothing to
        explain; and ``loss``, the mean squared error. Both are computed in float64.

    Raises:
        DataUnavailableError: the model has another number of outputs than the data set.
    """
    target = torch.cat([t for _, t in outputs]).double()
    error = (torch.cat([match_shape(o, t) for o, t in outputs]).double() - target).square()
    spread = (target - target.mean(dim=0)).square().sum(dim=0)
    r2 = torch.where(spread > 0, 1 - error.sum(dim=0) / spread.clamp_min(1e-300), torch.zeros_like(spread))
    return {"r2": float(r2.mean()), "loss": float(error.mean())}
