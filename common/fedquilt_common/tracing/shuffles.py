"""Rules for operations that move entries between channels and places, or between channels.

``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedquilt_common.tracing.channels import dimension, product, whole
from fedquilt_common.tracing.partitions import Args, Kwargs, find_argument
from fedquilt_common.tracing.tracer import ShapeSize, Traced, Walk


def pixel_shuffle(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Pixel shuffle: from shape (..., channels x r x r, h, w) to (..., channels, h x r, w x r)."""
    x, (*_, channels, height, width) = args[0], result.shape
    made = dimension(channels, walk.where, walk.depth)
    walk.unite(x.dims[-3], product(made, whole(x.shape[-3] // channels), walk.why))
    walk.keep_whole(x.dims[-2:])
    return Traced(result, (*x.dims[:-3], made, whole(height), whole(width)))


def pixel_unshuffle(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Its inverse: from shape (..., channels, h x r, w x r) to (..., channels x r x r, h, w)."""
    x, (*_, made, height, width) = args[0], result.shape
    walk.keep_whole(x.dims[-2:])
    channels = product(x.dims[-3], whole(made // x.shape[-3]), walk.why)
    return Traced(result, (*x.dims[:-3], channels, whole(height), whole(width)))


def channel_shuffle(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Channel shuffle: shape (n, channels, ...) stays; the same channels of every group are cut."""
    x, groups = args[0], getattr(called, "groups", None) or find_argument(args, kwargs, 1, "groups")[0]
    within = dimension(x.shape[1] // groups, walk.where, walk.depth)
    walk.unite(x.dims[1], within * groups)
    return Traced(result, (x.dims[0], product(within, whole(groups), walk.why), *x.dims[2:]))


def repeat_interleave(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Repeat each entry of one dimension of a shape, such as a head of keys that several heads of queries share."""
    x = args[0]
    repeats, place = find_argument(args, kwargs, 1, "repeats")[0], find_argument(args, kwargs, 2, "dim")[0]
    if place is None or not isinstance(repeats, int) or "output_size" in kwargs:
        raise walk.refuse("repeat_interleave() without a dimension, with several numbers of repeats or an output_size")
    if isinstance(repeats, ShapeSize):
        walk.keep_whole([repeats.dim])
    place %= len(x.shape)
    repeated = product(x.dims[place], whole(repeats), walk.why)
    return Traced(result, (*x.dims[:place], repeated, *x.dims[place + 1 :]))
