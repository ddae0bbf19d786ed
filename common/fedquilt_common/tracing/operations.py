"""Rules for functions and tensor methods: how the channels of arguments and results belong together.

``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.tracing.channels import REST, Dimension, is_whole, product, whole
from fedquilt_common.tracing.channels import split as split_dimension
from fedquilt_common.tracing.partitions import (
    Args,
    Kwargs,
    chunk,
    find_argument,
    glu,
    index,
    narrow,
    pad,
    roll,
    split,
    tensor_split,
    unbind,
    unfold,
)
from fedquilt_common.tracing.shuffles import channel_shuffle, pixel_shuffle, pixel_unshuffle, repeat_interleave
from fedquilt_common.tracing.tracer import (
    KERNEL,
    ComputedSize,
    Path,
    Rule,
    ShapeSize,
    Traced,
    Walk,
    all_whole,
    like,
    normalise_over,
    traced_in,
    unite_elementwise,
)


def elementwise(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Unite the dimensions that an elementwise operation aligns; operations on plain numbers unite nothing."""
    tensors = traced_in([args, dict(kwargs)])
    if tensors:
        return unite_elementwise(walk, tensors, result)
    return ComputedSize(result) if type(result) is int else all_whole(result)


def softmax(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """softmax, log_softmax, softmin: the shape stays; the places that share their sum of 1 are never cut."""
    dim, _ = find_argument(args, kwargs, 1, "dim")
    return Traced(result, normalise_over(walk, args[0], dim).dims)


def reshape(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """view, reshape, flatten, unflatten, squeeze, unsqueeze: to another shape, by joining and splitting dimensions.

    After ``view_as`` and ``reshape_as`` the dimensions are those of the other tensor.
    """
    x = args[0]
    dims: list[Dimension] = []
    for old, new in _stretches(x.shape, tuple(result.shape)):
        if not new:
            continue
        joined = whole(1)
        for place in old:
            joined = product(joined, x.dims[place], walk.why)
        dims += split_dimension(joined, tuple(result.shape[place] for place in new), walk.why)
    traced = Traced(result, tuple(dims))
    if isinstance(called, nn.Unflatten):
        first = called.dim % len(x.shape)
        parts = traced.dims[first : first + len(called.unflattened_size)]
        before = walk.attributes.setdefault((walk.where, "unflattened_size"), tuple(parts))
        for own, other in zip(before, parts, strict=True):  # the same layer may be called again
            walk.unite(own, other)  # type: ignore[arg-type]
    _rewrite_sizes(walk, called, args, kwargs, traced.dims)
    if called in ("view_as", "reshape_as"):
        for own, other in zip(traced.dims, args[1].dims, strict=True):
            walk.unite(own, other)
    return traced


def _rewrite_sizes(walk: Walk, called: Any, args: Args, kwargs: Kwargs, dims: Sequence[Dimension]) -> None:
    """Rewrite the sizes of a view, as far as its dimensions are cut.

    A dimension that joins the samples with channels has a piece for each sample. Its size, which forward computes,
    becomes what the other sizes leave (-1), or stays if another one is that.
    """
    written = _written_sizes(called, args, kwargs)
    inferred = len(written) < len(dims)
    for place, path, size in written:
        joined = len(dims[place]) > 1 and isinstance(size, ComputedSize)
        if is_whole(dims[place]) or (joined and inferred):
            continue
        walk.rewrite(path, REST if joined else dims[place])
        inferred = inferred or joined


_SIZES: dict[Any, tuple[int, str]] = {
    "view": (1, "size"), "reshape": (1, "shape"), torch.reshape: (1, "shape"), "expand": (1, "size"),
    "unflatten": (2, "sizes"), torch.unflatten: (2, "sizes"),
}  # fmt: skip
"""Place and name of the argument with the sizes that an operation gives its result."""


def _written_sizes(called: Any, args: Args, kwargs: Kwargs) -> list[tuple[int, Path, int]]:
    """Output dimension, path in the arguments, and each size that the model's code gives for a view, without -1."""
    first, name = _SIZES.get(called, (0, ""))
    given, path = find_argument(args, kwargs, first, name) if first else (None, ())
    if not path:
        return []
    offset = find_argument(args, kwargs, 1, "dim")[0] % len(args[0].shape) if first == 2 else 0
    if isinstance(given, list | tuple):
        sizes, paths = list(given), [(*path, number) for number in range(len(given))]
    else:
        sizes, paths = list(args[first:]), [(number,) for number in range(first, len(args))]
    places = range(offset, offset + len(sizes))
    return [found for found in zip(places, paths, sizes, strict=True) if found[2] != -1]


def _stretches(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Positions of ``old`` and ``new`` sizes in the smallest stretches of equal length, in order."""
    stretches, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b = ([i], [j]) if i < len(old) and j < len(new) else (list(range(i, len(old))), list(range(j, len(new))))
        i, j = (i + 1, j + 1) if i < len(old) and j < len(new) else (len(old), len(new))
        while math.prod(old[p] for p in a) != math.prod(new[p] for p in b):
            if math.prod(old[p] for p in a) < math.prod(new[p] for p in b):
                a.append(i)
                i += 1
            else:
                b.append(j)
                j += 1
        stretches.append((a, b))
    return stretches


def permute(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Reorder dimensions; which ones is found from a tensor whose shape has only different sizes."""
    x = args[0]
    marked = torch.empty(tuple(range(2, 2 + len(x.shape))), device="meta")
    function = getattr(marked, called)(*args[1:], **kwargs) if isinstance(called, str) else called(
        marked, *args[1:], **kwargs)  # fmt: skip
    return Traced(result, tuple(x.dims[size - 2] for size in function.shape))


def concatenate(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Concatenate tensors whose shapes agree except along one dimension."""
    parts = list(args[0] if args else kwargs["tensors"])
    along = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.dim()
    dims = []
    for place in range(result.dim()):
        if place == along:
            dims.append(tuple(piece for part in parts for piece in part.dims[place]))
            continue
        for other in parts[1:]:
            walk.unite(parts[0].dims[place], other.dims[place])
        dims.append(parts[0].dims[place])
    return Traced(result, tuple(dims))


def stack(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Stack tensors of one shape along a new dimension, which is never cut."""
    parts = list(args[0] if args else kwargs["tensors"])
    along = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.dim()
    dims = list(unite_elementwise(walk, parts, parts[0].tensor).dims)
    dims.insert(along, whole(len(parts)))
    return Traced(result, tuple(dims))


def reduce(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """mean, sum, max, ...: a reduced dimension disappears, or keeps one entry. With two tensors: element by element."""
    x = args[0]
    if len(traced_in([args, dict(kwargs)])) > 1:
        return elementwise(walk, called, args, kwargs, result)
    name = called if isinstance(called, str) else called.__name__
    named, _ = find_argument(args, kwargs, 2 if name == "norm" else 1, "dim")
    reduced = range(len(x.shape)) if named is None else [named] if isinstance(named, int) else named
    places = {place % len(x.shape) for place in reduced}
    over = [x.dims[place] for place in places]
    if name in ("argmax", "argmin", "prod"):  # other channels have other numbers, and a missing one is no factor of 0
        walk.keep_whole(over)
    results = [result] if isinstance(result, Tensor) else list(result)
    kept = results[0].dim() == len(x.shape)
    dims = tuple(whole(1) if p in places else d for p, d in enumerate(x.dims) if kept or p not in places)
    made = [Traced(one, dims) for one in results]
    walk.chosen |= dict.fromkeys(made[1:], (over, walk.why))  # by max and min
    return like(result, made) if made[1:] else made[0]


def matmul(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Product of matrices: from shapes (..., a, b) and (..., b, c) to (..., a, c)."""
    a, b = args[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        raise walk.refuse("a product with a vector")
    walk.unite(a.dims[-1], b.dims[-2])
    batches = [Traced(x.tensor[..., 0, 0], x.dims[:-2]) for x in (a, b)]
    batch = unite_elementwise(walk, batches, result[..., 0, 0])
    return Traced(result, (*batch.dims, a.dims[-2], b.dims[-1]))


def scaled_dot_product(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Attention of query (..., length, d), key and value: the shape (..., length, d of the value)."""
    query, key, value = args[:3]
    walk.unite(query.dims[-1], key.dims[-1])
    walk.unite(key.dims[-2], value.dims[-2])
    walk.keep_whole([query.dims[-2], key.dims[-2]])
    for one, other in zip(query.dims[:-2], key.dims[:-2], strict=True):
        walk.unite(one, other)
    walk.keep_masks_whole([args, dict(kwargs)], (query, key, value))
    return Traced(result, (*query.dims[:-1], value.dims[-1]))


def pool(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Pooling, interpolation: places of a shape stay whole; those of interpolation are dimensions that change."""
    x, name = args[0], str(getattr(called, "__name__", called))
    if "pool" in name and not isinstance(called, nn.Module):
        walk.keep_whole(x.dims[-int(name[-2]) :])
    dims = []
    for size, before, dim in zip(result.shape, x.shape, x.dims, strict=True):
        if size != before and not is_whole(dim):
            walk.keep_whole([dim])
        dims.append(dim if size == before else whole(size))
    return Traced(result, tuple(dims))


def expand(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Expand or repeat a tensor to a larger shape; dimensions that grow are never cut."""
    x = args[0]
    before = (*[1] * (result.dim() - len(x.shape)), *x.shape)
    dims = (*(whole(1) for _ in range(result.dim() - len(x.shape))), *x.dims)
    if called == "repeat":
        walk.keep_whole([d for d, n, m in zip(dims, before, result.shape, strict=True) if n != m])
    made = tuple(d if n == m else whole(m) for d, n, m in zip(dims, before, result.shape, strict=True))
    _rewrite_sizes(walk, called, args, kwargs, made)
    return Traced(result, made)


def shape_of(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Sizes as numbers; a cut model computes its own."""
    if isinstance(result, torch.Size):
        return tuple(map(ShapeSize.of, result, args[0].dims))
    if called == "size":
        return ShapeSize.of(result, args[0].dims[args[1] if len(args) > 1 else kwargs["dim"]])
    return result


def get_attribute(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Attributes of a tensor: its shape, dtype, device and transposes; others are refused. Those of named tuples."""
    x, name = args
    if isinstance(x, tuple):  # a named one
        return getattr(x, name)
    if isinstance(x, Traced) and name == "T":
        return Traced(result, tuple(reversed(x.dims)))
    if isinstance(x, Traced) and name == "mT":
        return Traced(result, (*x.dims[:-2], x.dims[-1], x.dims[-2]))
    if isinstance(x, Traced) and name not in ("shape", "dtype", "device", "ndim"):
        raise walk.refuse(f"the tensor attribute .{name}")
    return shape_of(walk, called, args, kwargs, result)


def linear(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``functional.linear`` with the model's own parameters: from shape (..., inputs) to (..., outputs)."""
    x, weight, *bias = (*args, *([kwargs["bias"]] if kwargs.get("bias") is not None else []))
    walk.next_layer()
    walk.unite(x.dims[-1], weight.dims[1])
    for vector in bias:
        if vector is not None:
            walk.unite(weight.dims[0], vector.dims[0])
    return Traced(result, (*x.dims[:-1], weight.dims[0]))


def create(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Create a tensor from sizes and numbers alone, such as positions or zeros; it is never cut."""
    return all_whole(result)


def layer_norm(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``functional.layer_norm``: shape (..., *normalized_shape) stays."""
    x, shape, *parameters = args
    last = x.dims[-len(shape) :]
    for parameter in traced_in([parameters, dict(kwargs)]):
        for dim, own in zip(last, parameter.dims, strict=True):
            walk.unite(dim, own)
    walk.rewrite((1,), tuple(last))
    if tuple(getattr(walk.owner, "normalized_shape", ())) == tuple(shape):
        walk.attributes[walk.owner_name, "normalized_shape"] = tuple(last)
        walk.followed.add((walk.where, (1,)))
    return Traced(result, x.dims)


def convolution(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``functional.conv2d`` and others with parameters of the model: from (n, inputs, ...) to (n, outputs, ...)."""
    x, weight = args[:2]
    if x.shape[1] != weight.shape[1]:
        raise walk.refuse(f"{called.__name__}() with groups; use a layer such as nn.Conv2d")
    walk.next_layer()
    walk.keep_whole(weight.dims[2:], KERNEL)
    walk.keep_whole(x.dims[2:])
    walk.unite(x.dims[1], weight.dims[1])
    for bias in traced_in([args[2:3], kwargs.get("bias")]):
        walk.unite(weight.dims[0], bias.dims[0])
    return Traced(result, (x.dims[0], weight.dims[0], *(whole(size) for size in result.shape[2:])))


def keep_constants_whole(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Any operation on parameters and buffers alone: they stay whole, so a sub-model computes the same."""
    walk.keep_whole([dim for x in traced_in([args, dict(kwargs)]) for dim in x.dims])
    return all_whole(result)


def ignore(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Check a condition on sizes; it relates no channels."""
    return result


def drop_samples(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """``stochastic_depth`` of torchvision, and functions like it: they keep the shape and relate no channels."""
    return unite_elementwise(walk, [args[0]], result)


def _functions(*names: str) -> list[Callable[..., Any]]:
    """All functions of these names in torch, torch.nn.functional, operator and math."""
    return [
        f
        for name in names
        for place in (torch, functional, operator, math)
        if callable(f := getattr(place, name, None))
    ]


_ELEMENTWISE = (
    "add", "sub", "mul", "div", "truediv", "floordiv", "floor_divide", "true_divide", "pow", "neg", "pos", "abs",
    "maximum", "minimum", "where", "iadd", "isub", "imul", "itruediv", "add_", "sub_", "mul_", "div_", "relu_", "eq",
    "ne", "lt", "le", "gt", "ge", "mod", "clamp", "clip", "relu", "relu6", "leaky_relu", "elu", "selu", "celu",
    "gelu", "silu", "mish", "sigmoid", "tanh", "hardtanh", "hardswish", "hardsigmoid", "softplus", "softsign",
    "logsigmoid", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "erf",
    "log1p", "expm1", "floor", "ceil", "round", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_dropout", "detach", "clone", "contiguous", "float", "half", "bfloat16", "double", "to", "type_as",
    "normalize", "masked_fill", "lerp", "sign", "reciprocal", "bool", "long", "int", "logical_not", "logical_and",
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "logical_or", "addcmul",
    "addcdiv", "bernoulli_", "bernoulli", "uniform_", "normal_", "floor_", "clamp_",
)  # fmt: skip
_RULES: list[tuple[Rule, tuple[str, ...]]] = [
    (elementwise, _ELEMENTWISE),
    (softmax, ("softmax", "log_softmax", "softmin")),
    (reshape, ("flatten", "reshape", "view", "unflatten", "squeeze", "unsqueeze", "ravel", "view_as",
               "reshape_as")),
    (permute, ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t")),
    (concatenate, ("cat", "concat", "concatenate")),
    (stack, ("stack",)),
    (chunk, ("chunk",)),
    (tensor_split, ("tensor_split",)),
    (glu, ("glu",)),
    (split, ("split", "split_with_sizes")),
    (unbind, ("unbind",)),
    (unfold, ("unfold",)),
    (narrow, ("narrow",)),
    (pad, ("pad",)),
    (roll, ("roll", "flip")),
    (pixel_shuffle, ("pixel_shuffle",)),
    (pixel_unshuffle, ("pixel_unshuffle",)),
    (channel_shuffle, ("channel_shuffle",)),
    (repeat_interleave, ("repeat_interleave",)),
    (layer_norm, ("layer_norm",)),
    (convolution, ("conv1d", "conv2d", "conv3d")),
    (ignore, ("_assert",)),
    (reduce, ("mean", "sum", "amax", "amin", "max", "min", "std", "var", "norm", "logsumexp", "prod", "argmax",
              "argmin")),
    (matmul, ("matmul", "bmm", "mm", "__matmul__")),
    (scaled_dot_product, ("scaled_dot_product_attention",)),
    (pool, ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
            "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
            "adaptive_max_pool2d", "adaptive_max_pool3d", "interpolate")),
    (index, ("getitem", "__getitem__")),
    (expand, ("expand", "expand_as", "repeat")),
    (shape_of, ("size", "dim", "numel", "len")),
    (linear, ("linear",)),
    (create, ("arange", "zeros", "ones", "full", "tensor", "tril", "triu", "eye",
              "linspace", "empty", "rand", "randn", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")),
]  # fmt: skip
METHODS: dict[str, Rule] = {name: rule for rule, names in _RULES for name in names}
FUNCTIONS: dict[Callable[..., Any], Rule] = {
    **{function: rule for rule, names in _RULES for function in _functions(*names)},
    getattr: get_attribute,
    len: shape_of,
}
BY_NAME: dict[str, Rule] = dict.fromkeys(("stochastic_depth", "drop_path"), drop_samples)
"""Rules for functions of other packages that ``torch.fx.wrap`` keeps as one operation."""
