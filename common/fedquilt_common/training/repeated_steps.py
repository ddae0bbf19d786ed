"""Steps that the scaled loss of ``amp`` skips: they are repeated, because a client has few steps in a round.

torch's GradScaler leaves the batch out, which suits long trainings. Each task of a client begins at the first scale,
so a client with one batch a round might never take a step, and algorithms that count steps would count too many.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedquilt_common.training.optimisers import Optimiser


def repeat_until_taken(module: nn.Module, optimiser: Optimiser, compute_loss: Callable[[], Tensor]) -> None:
    """Repeat a step that the optimiser skipped, at ever smaller scales of the loss, until it succeeds.

    The module's buffers do not change: the skipped step has counted its batch in the statistics of the norms already.

    Args:
        module: the model in training.
        optimiser: with a scale of the loss; each skipped step halves it.
        compute_loss: makes a forward pass over the batch of the step and returns its loss, of shape ().

    Raises:
        TrainingDivergedError: the gradients are not finite even at the least scale.
    """
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    is_taken = False
    while not is_taken:
        is_taken = optimiser.step(compute_loss())
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
