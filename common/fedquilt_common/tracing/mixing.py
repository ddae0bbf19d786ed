"""Whether a model keeps the samples of a batch apart."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.tracing.generators import use_seed
from fedquilt_common.tracing.outputs import example_batch


def mixes_samples(module: nn.Module, x: NDArray[Any]) -> bool:
    """Whether the outputs for a sample change with the sample beside it, in the mode of the module.

    Args:
        module: any module.
        x: samples of shape (n, *input_shape); their numbers do not matter.
    """
    batch = example_batch(x)
    beside = torch.stack([batch[0], 1 - batch[1]])
    try:
        pairs = zip(_first_outputs(module, batch), _first_outputs(module, beside), strict=True)
        return not all(torch.allclose(one, other, equal_nan=True) for one, other in pairs)
    except Exception:  # a user's forward can raise anything; training raises it again
        return False


def _first_outputs(module: nn.Module, batch: Tensor) -> list[Tensor]:
    """Return the outputs for the first sample of a batch, of shape (n, *input_shape), with the same draws each time."""
    with use_seed(0), torch.no_grad():
        output = module(batch)
    return [one[0] for one in (output if isinstance(output, list | tuple) else [output])]
