"""Losses that algorithms share. They import torch only when training calls them.

Each takes ``outputs`` and ``targets``, torch tensors of a batch, and returns a scalar tensor.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import ClientContext, Loss


def cross_entropy(outputs: Any, targets: Any) -> Any:
    """Cross entropy, mean over the samples.

    Args:
        outputs: logits, float of shape (n, classes).
        targets: classes, int64 of shape (n,), or probabilities, float of shape (n, classes).
    """
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def balanced_softmax(counts: NDArray[np.int64]) -> Loss:
    """Cross entropy of logits + log(counts): balanced softmax.

    Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.

    Args:
        counts: the client's samples of each class, int64 of shape (classes,). A class without samples is left out.
    """

    def loss(outputs: Any, targets: Any) -> Any:
        import torch

        prior = torch.from_numpy(counts).to(outputs.device, outputs.dtype).log()
        return cross_entropy(outputs + prior, targets)

    return loss


def mean_squared(outputs: Any, targets: Any) -> Any:
    """Mean squared error over samples and classes (FedAKD thesis, section 3.8); both of shape (n, classes)."""
    return ((outputs - targets) ** 2).mean()


def mean_absolute(outputs: Any, targets: Any) -> Any:
    """Mean absolute error over samples and classes (the code published with FedAKD); both of shape (n, classes)."""
    return (outputs - targets).abs().mean()


def divergence(outputs: Any, targets: Any) -> Any:
    """Kullback-Leibler divergence of the outputs' softmax from the targets', mean over the samples, no temperature.

    Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.

    Args:
        outputs: the student's logits, float of shape (n, classes).
        targets: soft labels, which are logits too, in the same shape.
    """
    from torch.nn import functional

    soft = functional.log_softmax(targets, dim=1)
    return functional.kl_div(functional.log_softmax(outputs, dim=1), soft, reduction="batchmean", log_target=True)


DISTILLATION: Final[dict[str, Loss]] = {"mse": mean_squared, "mae": mean_absolute, "kl": divergence}
"""Distillation losses by name: between a student's logits and soft labels, which are logits too."""


def class_counts(ctx: ClientContext) -> NDArray[np.int64]:
    """Count the client's training samples of each class.

    Returns:
        int64 of shape (classes,).
    """
    return np.bincount(ctx.data.y.astype(np.int64), minlength=ctx.classes)
