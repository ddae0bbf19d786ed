"""FedReb with what its thesis leaves open or rules out: the first private head, and how strongly images are changed.

``benchmarks/fedreb_small.yaml`` measures both; run it with ``PYTHONPATH=benchmarks``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.rebalance import RebalancedExamples, class_threshold, rebalance_examples
from fedquilt_common.algorithm_api import ClientContext, Reply, Task
from fedquilt_common.algorithms.fedreb import FedReb
from fedquilt_common.augment import images
from fedquilt_common.submodels.heads import pick_arrays
from fedquilt_common.training.losses import class_counts


@dataclass(frozen=True)
class FedRebVariant(FedReb):
    """FedReb with two more options.

    Attributes:
        first_head: a client's first private head. ``initial``: the run's initial head, as in section 4.3 of the thesis;
            ``received``: the shared head of the first task that the client trains.
        strength: factor of the crop, the angles, the shift and the scale of the 5-step augmentation; 1 is FedReb's.
    """

    first_head: Literal["initial", "received"] = "initial"
    strength: float = 1.0

    def train(self, task: Task, ctx: ClientContext) -> Reply:
        """Train as FedReb, from the chosen first head."""
        if self.first_head == "received" and not ctx.memory:
            ctx.memory.update(pick_arrays(task.arrays, ctx.learner.head(self.head_layers)))
        return super().train(task, ctx)

    def rebalance(self, ctx: ClientContext) -> RebalancedExamples:
        """Return FedReb's rebalanced data set, with changes of the chosen strength."""
        threshold = class_threshold(class_counts(ctx), self.threshold, self.rounding, distinct=self.distinct)
        rng = np.random.default_rng(ctx.lasting_seed)
        return rebalance_examples(ctx.data, threshold, lambda x, rng: change_images(x, rng, self.strength), rng)


def change_images(x: NDArray[Any], rng: np.random.Generator, strength: float) -> NDArray[Any]:
    """Flip, crop, turn, shear, scale and shift grey images as ``images.five_steps`` does, times a strength.

    Args:
        x: images of shape (n, 1, height, width).
        rng: draws the changes; with a strength of 1 these are those of ``five_steps``.
        strength: factor of all magnitudes but the flip's probability.

    Returns:
        New images in the shape and dtype of ``x``.
    """
    x = images.flip(x, rng.random(len(x)) < images.FLIP_PROBABILITY)
    pad = [max(1, round(strength * images.PADDING * side)) for side in x.shape[2:]]
    x = images.crop(x, *(rng.integers(-p, p + 1, len(x)) for p in pad))
    degrees = rng.uniform(-images.ROTATION, images.ROTATION, len(x)) * strength
    x = images.transform_affine(x, images.rotation(degrees))
    angle = np.deg2rad(rng.uniform(-images.SHEAR, images.SHEAR, len(x)) * strength)
    scale = 1 + (rng.uniform(*images.SCALE, len(x)) - 1) * strength
    maps = images.shearing(np.tan(angle), np.zeros(len(x))) * scale[:, None, None]
    moved = rng.uniform(-images.TRANSLATION, images.TRANSLATION, (len(x), 2)) * strength * x.shape[:1:-1]
    maps[:, :, 2] = np.round(moved)
    return images.transform_affine(x, maps)
