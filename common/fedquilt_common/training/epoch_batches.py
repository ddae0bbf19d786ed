"""The batches of an epoch of training: the order in which samples are drawn, and how it is divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training


def draw_order(y: NDArray[Any], training: Training, shuffler: torch.Generator) -> NDArray[np.int64]:
    """Return the positions of an epoch's samples, int64 of shape (n,); soft labels have no classes to balance."""
    if training.sampling == "balanced" and y.ndim == 1 and y.dtype.kind in "iu":
        return draw_balanced(y, shuffler)
    order: NDArray[np.int64] = torch.randperm(len(y), generator=shuffler).numpy()
    return order


def draw_balanced(y: NDArray[Any], shuffler: torch.Generator) -> NDArray[np.int64]:
    """Draw n positions of the classes ``y``, of shape (n,), with replacement: first a class, then one of its samples.

    Whole numbers only, so that every machine draws the same samples.
    """
    _, class_of, sizes = np.unique(y, return_inverse=True, return_counts=True)
    drawn = torch.randint(len(sizes), (len(y),), generator=shuffler).numpy()
    within = torch.randint(1 << 62, (len(y),), generator=shuffler).numpy() % sizes[drawn]
    positions: NDArray[np.int64] = np.argsort(class_of, kind="stable")[(np.cumsum(sizes) - sizes)[drawn] + within]
    return positions


def divide_order(order: NDArray[Any], training: Training, module: nn.Module) -> list[NDArray[Any]]:
    """Divide ``order``, int64 of shape (n,), into batches.

    A last batch that is not full is left out with ``drop_last``, and if it would give batch norm a single sample.
    """
    size = training.batch
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    has_norm = any(isinstance(part, _BatchNorm) for part in module.modules())
    if len(batches) > 1 and len(batches[-1]) < size and (
        training.drop_last or (len(batches[-1]) == 1 and has_norm)
    ):  # fmt: skip
        batches.pop()
    return batches
