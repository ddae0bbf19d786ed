"""Losses that algorithms share, as functions of torch's tensors; torch is loaded by those who train."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import ClientContext, Loss
from fedquilt_common.errors import DataUnavailableError


def cross_entropy(outputs: Any, targets: Any) -> Any:
    """The mean over the samples; ``outputs`` are logits, shape (n, classes), ``targets`` classes or probabilities."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def balanced_softmax(counts: NDArray[np.int64]) -> Loss:
    """Cross entropy of logits + log(counts), ``counts`` being the client's samples of each class, shape (classes,).

    A class without samples is left out. Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition",
    NeurIPS 2020.
    """

    def loss(outputs: Any, targets: Any) -> Any:
        import torch

        prior = torch.from_numpy(counts).to(outputs.device, outputs.dtype).log()
        return cross_entropy(outputs + prior, targets)

    return loss


def mean_squared(outputs: Any, targets: Any) -> Any:
    """Over samples and classes (FedAKD thesis, section 3.8)."""
    return ((outputs - targets) ** 2).mean()


def mean_absolute(outputs: Any, targets: Any) -> Any:
    """Over samples and classes (the code published with FedAKD)."""
    return (outputs - targets).abs().mean()


def divergence(outputs: Any, targets: Any) -> Any:
    """Kullback and Leibler's, of the outputs' softmax from the targets': the mean over the samples, no temperature.

    Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.
    """
    from torch.nn import functional

    soft = functional.log_softmax(targets, dim=1)
    return functional.kl_div(functional.log_softmax(outputs, dim=1), soft, reduction="batchmean", log_target=True)


DISTILLATION: Final[dict[str, Loss]] = {"mse": mean_squared, "mae": mean_absolute, "kl": divergence}
"""How far a student's logits are from soft labels that are logits too, both of shape (n, classes)."""


def class_counts(ctx: ClientContext) -> NDArray[np.int64]:
    """The client's training samples of each class, shape (classes,). Raises DataUnavailableError for regression."""
    if not ctx.classes:
        raise DataUnavailableError(
            "the algorithm balances classes, but the data set has none; choose an algorithm for regression"
        )
    return np.bincount(ctx.data.y.astype(np.int64), minlength=ctx.classes)
