"""How good a model is on given samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedquilt_common.errors import DataUnavailableError


def like(output: Tensor, target: Tensor) -> Tensor:
    """``output`` as (n, outputs); raises DataUnavailableError unless ``target`` has as many."""
    output = output.reshape(len(output), -1)
    if output.shape != target.shape:
        raise DataUnavailableError(
            f"the model gives {output.shape[1]} values a sample where the data set has {target.shape[1]}; "
            "choose a model with as many outputs"
        )
    return output


def score_classes(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """``accuracy`` (0 to 1) and the mean cross entropy of (logits, classes) batches."""
    count = sum(len(target) for _, target in outputs)
    right = sum(int((output.argmax(dim=1) == target).sum()) for output, target in outputs)
    loss = sum(float(functional.cross_entropy(o.double(), t, reduction="sum")) for o, t in outputs)
    return {"accuracy": right / count, "loss": loss / count}


def score_values(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """R2 is the mean over the outputs; one that never changes counts as 0: there is nothing to explain."""
    target = torch.cat([t for _, t in outputs]).double()
    error = (torch.cat([like(o, t) for o, t in outputs]).double() - target).square()
    spread = (target - target.mean(dim=0)).square().sum(dim=0)
    r2 = torch.where(spread > 0, 1 - error.sum(dim=0) / spread.clamp_min(1e-300), torch.zeros_like(spread))
    return {"r2": float(r2.mean()), "loss": float(error.mean())}
