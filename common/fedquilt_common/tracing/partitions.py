"""Rules for operations that divide, pad or index a dimension of channels.

The sizes that the model's code contains are recorded, so that a sub-model has its own. ``tracer.Rule`` documents the
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedquilt_common.tracing.channels import Dimension, dimension, is_whole, whole
from fedquilt_common.tracing.layer_kinds import layer_kind
from fedquilt_common.tracing.tracer import Path, ShapeSize, Traced, Walk, like, traced_in

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


def _divide(walk: Walk, dim: Dimension, sizes: Sequence[int]) -> tuple[Dimension, ...]:
    """Divide a dimension into parts that are cut independently; a dimension that is never cut has whole parts."""
    if is_whole(dim):
        return tuple(whole(size) for size in sizes)
    parts = tuple(dimension(size, "", walk.depth) if size else () for size in sizes)
    walk.unite(dim, tuple(piece for part in parts for piece in part))
    return parts


def _replace_dimension(x: Traced, tensor: Tensor, place: int, dim: Dimension) -> Traced:
    return Traced(tensor, (*x.dims[:place], dim, *x.dims[place + 1 :]))


def find_argument(args: Args, kwargs: Kwargs, place: int, *names: str) -> tuple[Any, Path]:
    """Return an argument that may be given by position or by name, and its path; None if it is missing."""
    if len(args) > place:
        return args[place], (place,)
    name = next((name for name in names if name in kwargs), None)
    return (None, ()) if name is None else (kwargs[name], (name,))


def chunk(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Sequence[Tensor]) -> tuple[Traced, ...]:
    """Divide one dimension of a shape: equal parts share one index set, parts of different sizes stay whole."""
    x = args[0]
    place = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(x.shape)
    sizes = [part.shape[place] for part in result]
    if len(set(sizes)) > 1:
        walk.keep_whole([x.dims[place]])
        return tuple(_replace_dimension(x, part, place, whole(part.shape[place])) for part in result)
    piece = dimension(sizes[0], walk.where, walk.depth)
    walk.unite(x.dims[place], piece * len(sizes))
    return tuple(_replace_dimension(x, part, place, piece) for part in result)


def glu(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """glu: both halves of one dimension of the shape share one index set."""
    x, given = args[0], find_argument(args, kwargs, 1, "dim")[0]
    place = (-1 if given is None else given) % len(x.shape)
    half = dimension(result.shape[place], walk.where, walk.depth)
    walk.unite(x.dims[place], half * 2)
    return _replace_dimension(x, result, place, half)


def split(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Sequence[Tensor]) -> tuple[Traced, ...]:
    """Divide one dimension of a shape into parts of given sizes; each part is cut by itself."""
    x = args[0]
    place = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(x.shape)
    parts = _divide(walk, x.dims[place], [part.shape[place] for part in result])
    _, path = find_argument(args, kwargs, 1, "split_size_or_sections", "split_size", "split_sizes")
    walk.rewrite(path, parts)
    return tuple(_replace_dimension(x, part, place, dim) for part, dim in zip(result, parts, strict=True))


def tensor_split(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Sequence[Tensor]) -> tuple[Traced, ...]:
    """Divide one dimension of a shape into a number of parts, as ``chunk``, or at positions: each part by itself."""
    given, path = find_argument(args, kwargs, 1, "indices_or_sections", "sections", "indices")
    if isinstance(given, int):
        return chunk(walk, called, args, kwargs, result)
    x = args[0]
    place = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(x.shape)
    sizes = [part.shape[place] for part in result]
    if not isinstance(given, list | tuple) or sum(sizes) != x.shape[place]:
        raise walk.refuse("tensor_split() with positions that are in a tensor, or not in order")
    parts = _divide(walk, x.dims[place], sizes)
    for number in range(len(given)):
        walk.rewrite((*path, number), tuple(piece for part in parts[: number + 1] for piece in part))
    return tuple(_replace_dimension(x, part, place, dim) for part, dim in zip(result, parts, strict=True))


def unbind(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Sequence[Tensor]) -> tuple[Traced, ...]:
    """Take one dimension of a shape apart; it stays whole."""
    x = args[0]
    place = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(x.shape)
    walk.keep_whole([x.dims[place]])
    return tuple(Traced(part, (*x.dims[:place], *x.dims[place + 1 :])) for part in result)


def unfold(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``x.unfold(dim, size, step)``: a dimension of the shape becomes windows, and a last one their entries; whole."""
    if not isinstance(called, str):
        raise walk.refuse("functional.unfold()")
    x = args[0]
    place = args[1] % len(x.shape)
    walk.keep_whole([x.dims[place]])
    windows, entries = whole(result.shape[place]), whole(result.shape[-1])
    return Traced(result, (*x.dims[:place], windows, *x.dims[place + 1 :], entries))


def narrow(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Take some neighbouring entries of one dimension of a shape."""
    x = args[0]
    (dim, _), (start, start_path), (size, size_path) = (
        find_argument(args, kwargs, place, name) for place, name in ((1, "dim"), (2, "start"), (3, "length"))
    )
    place = dim % len(x.shape)
    start %= x.shape[place]
    before, part, _ = _divide(walk, x.dims[place], (start, size, x.shape[place] - start - size))
    walk.rewrite(start_path, before)
    walk.rewrite(size_path, part)
    return _replace_dimension(x, result, place, part)


def index(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """``x[...]``: a slice without a step keeps or divides a dimension, a number drops it."""
    x, key = args
    if not isinstance(x, Traced):
        return x[key]
    items = list(key) if isinstance(key, tuple) else [key]
    if traced_in(items) or any(isinstance(item, list) for item in items):
        return _look_up(walk, x, items, result)
    dims: list[Dimension] = []
    place = 0
    for number, item in enumerate(items):
        path: Path = (1, number) if isinstance(key, tuple) else (1,)
        if item is Ellipsis:
            real = sum(other is not None for other in items) - 1
            dims += x.dims[place : place + len(x.shape) - real]
            place += len(x.shape) - real
        elif item is None:
            dims.append(whole(1))
        else:
            dims += _index_one(walk, x.dims[place], x.shape[place], item, path)
            place += 1
    return Traced(result, (*dims, *x.dims[place:]))


def _index_one(walk: Walk, dim: Dimension, size: int, item: Any, path: Path) -> list[Dimension]:
    """Dimensions that are left of one: none for a number."""
    if isinstance(item, int):
        walk.keep_whole([dim])
        return []
    if not isinstance(item, slice):
        raise walk.refuse(f"indexing by {item!r}")
    start, stop, step = item.indices(size)
    if (start, stop, step) == (0, size, 1):
        return [dim]
    by_places = any(isinstance(bound, ShapeSize) and is_whole(bound.dim) for bound in (item.start, item.stop))
    if step != 1 or stop <= start or is_whole(dim) or by_places:
        walk.keep_whole([dim])
        return [whole(len(range(start, stop, step)))]
    before, part, _ = _divide(walk, dim, (start, stop - start, size - stop))
    if item.start is not None:
        walk.rewrite((*path, "start"), before)
    if item.stop is not None:
        walk.rewrite((*path, "stop"), (*before, *part))
    return [part]


def _look_up(walk: Walk, x: Traced, items: list[Any], result: Tensor) -> Traced:
    """``x[indices]``: the first dimension is looked up by number, and stays whole."""
    if len(items) > 1 or isinstance(items[0], list):
        raise walk.refuse("indexing by a tensor or a list")
    walk.keep_whole([x.dims[0], *items[0].dims])
    return Traced(result, (*(whole(size) for size in items[0].shape), *x.dims[1:]))


def pad(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``functional.pad``: to a larger shape; channels that are padded with a constant are cut, places are not."""
    x = args[0]
    amounts, path = find_argument(args, kwargs, 1, "pad")
    mode, _ = find_argument(args, kwargs, 2, "mode")
    traced, sides = _pad(walk, x, amounts, result, cut=mode in (None, "constant"))
    for number, (amount, side) in enumerate(zip(amounts, sides, strict=True)):
        if amount and not is_whole(side):
            walk.rewrite((*path, number), side)
    return traced


def pad_layer(walk: Walk, module: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``nn.ConstantPad2d`` and others: to a larger shape, as ``functional.pad``; one that crops cuts no channels."""
    constant = layer_kind(module).__name__.startswith(("Constant", "Zero"))
    traced, sides = _pad(walk, args[0], module.padding, result, cut=constant and min(module.padding) >= 0)
    if not all(map(is_whole, sides)):
        walk.attributes[walk.where, "padding"] = sides
    return traced


def _pad(
    walk: Walk, x: Traced, amounts: Sequence[int], result: Tensor, *, cut: bool
) -> tuple[Traced, tuple[Dimension, ...]]:
    """Return the padded tensor, and the dimension that each amount adds."""
    dims, sides = list(x.dims), [whole(max(amount, 0)) for amount in amounts]
    for back in range(1, len(amounts) // 2 + 1):
        left, right = amounts[2 * back - 2 : 2 * back]
        dim, size = dims[-back], result.shape[-back]
        if left == right == 0:
            continue
        if is_whole(dim) or not cut or min(left, right) < 0:
            walk.keep_whole([dim])
            dims[-back] = whole(size)
            continue
        ends = [dimension(amount, walk.where, walk.depth) if amount else () for amount in (left, right)]
        sides[2 * back - 2 : 2 * back] = ends
        dims[-back] = (*ends[0], *dim, *ends[1])
    return Traced(result, tuple(dims)), tuple(sides)


def roll(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``torch.roll`` and ``torch.flip``: the shape stays, and the dimensions that they move are never cut."""
    x = args[0]
    flips = called in ("flip", torch.flip)
    moved, _ = find_argument(args, kwargs, 1 if flips else 2, "dims")
    if flips and len(args) > 2:  # x.flip(2, 1)
        moved = args[1:]
    places = range(len(x.shape)) if moved is None else [moved] if isinstance(moved, int) else moved
    walk.keep_whole([x.dims[place] for place in places])
    return Traced(result, x.dims)


def construct(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Make a named tuple of values."""
    return like(result, args)
