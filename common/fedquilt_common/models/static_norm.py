"""HeteroFL's two layers for sub-models of different widths: static batch norm and the Scaler.

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021, section 3; FedRolex uses the same (thesis, section 3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class StaticBatchNorm(nn.Module):
    """Batch norm over dimension 1 without running averages in training (HeteroFL's sBN).

    In training it always normalises by the batch. In evaluation it uses the collected statistics if there are any
    (``num_batches_tracked`` > 0), else those of the batch. While ``collecting`` is set, each forward pass adds its
    batch to the statistics. HeteroFL makes such a pass after training.

    The collected mean and variance are those of all samples together, whatever the sizes of the batches. HeteroFL's
    code averages the batches' unbiased variances (torch's ``momentum=None``), without the spread between their means.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.collecting = False
        self._collected = 0
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def start_collecting(self) -> None:
        """Discard the statistics, and collect new ones in the forward passes that follow, as in training."""
        self.collecting = self.training = True
        self._collected = 0
        self.num_batches_tracked.zero_()
        self.running_mean.zero_()
        self.running_var.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch of shape (n, num_features, ...); the shape stays."""
        if self.collecting:
            self._collect(x.detach().to(self.running_mean.dtype))
        if self.training or not int(self.num_batches_tracked):
            return self._normalise_by_batch(x)
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def _normalise_by_batch(self, x: Tensor) -> Tensor:
        if x.numel() > x.shape[1]:
            return functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        shape = (1, -1, *[1] * (x.dim() - 2))  # torch refuses a single value, which is its own mean
        return (x - x) * self.weight.reshape(shape) + self.bias.reshape(shape)

    def _collect(self, x: Tensor) -> None:
        self.num_batches_tracked += 1
        over = [0, *range(2, x.dim())]
        self._collected += len(x)
        part = len(x) / self._collected
        mean, variance = x.mean(over), x.var(over, unbiased=False)
        self.running_var.lerp_(variance + (1 - part) * (mean - self.running_mean) ** 2, part)
        self.running_mean.lerp_(mean, part)


def list_statistics(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the means and variances of a module's static batch norms; a norm can have several names."""
    parts = module.named_modules(remove_duplicate=False)
    norms = [name for name, part in parts if isinstance(part, StaticBatchNorm)]
    return tuple(f"{norm}.{kind}".lstrip(".") for norm in norms for kind in ("running_mean", "running_var"))


class Scaler(nn.Module):
    """Divides by ``rate``, the part of the channels that a sub-model keeps, in training only (HeteroFL, section 3)."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Scale a batch of any shape; the shape stays."""
        return x / self.rate if self.training and self.rate != 1.0 else x
