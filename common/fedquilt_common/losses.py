"""Losses that algorithms share, as functions of torch's tensors; torch is loaded by those who train."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Loss, Site


def cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean over the samples; ``logits`` of shape (n, classes)."""
    from torch.nn import functional

    return functional.cross_entropy(logits, targets)


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


def class_counts(site: Site) -> NDArray[np.int64]:
    """The client's training samples of each class, shape (classes,). Raises DataUnavailableError for regression."""
    if not site.classes:
        raise DataUnavailableError(
            "the algorithm balances classes, but the data set has none; choose an algorithm for regression"
        )
    return np.bincount(site.data.y.astype(np.int64), minlength=site.classes)
