"""Rules for functions and tensor methods: how the channels of arguments and results belong together.

``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedquilt_common.tracing.channels import Dimension, dimension, is_whole, product, split, whole
from fedquilt_common.tracing.tracer import Rule, Traced, Walk, all_whole, traced_in, unite_elementwise

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


def elementwise(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Unite the dimensions that an elementwise operation aligns; operations on plain numbers unite nothing."""
    tensors = traced_in([args, dict(kwargs)])
    return unite_elementwise(walk, tensors, result) if tensors else all_whole(result)


def reshape(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """view, reshape, flatten, unflatten, squeeze, unsqueeze: to another shape, by joining and splitting dimensions."""
    x = args[0]
    dims: list[Dimension] = []
    for old, new in _stretches(x.shape, tuple(result.shape)):
        if not new:
            continue
        joined = whole(1)
        for place in old:
            joined = product(joined, x.dims[place], walk.why)
        dims += split(joined, tuple(result.shape[place] for place in new), walk.why)
    traced = Traced(result, tuple(dims))
    for place, path in _written_sizes(called, args):
        if not is_whole(traced.dims[place]):
            walk.rewrites[walk.where, path] = traced.dims[place]
    return traced


def _written_sizes(called: Any, args: Args) -> list[tuple[int, tuple[int, ...]]]:
    """Output dimension and path in the arguments of each size that the model's code contains for a view."""
    if called not in ("view", "reshape", torch.reshape):
        return []
    sizes, base = (args[1], (1,)) if len(args) == 2 and isinstance(args[1], list | tuple) else (args[1:], ())
    return [(place, (*base, place + (0 if base else 1))) for place, size in enumerate(sizes) if size != -1]


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


def chunk(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Sequence[Tensor]) -> tuple[Traced, ...]:
    """Divide one dimension of a shape: equal parts share one index set, parts of different sizes stay whole."""
    x = args[0]
    place = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(x.shape)
    sizes = [part.shape[place] for part in result]
    if len(set(sizes)) > 1 or called in ("split", torch.split):
        walk.keep_whole([x.dims[place]])
        return tuple(_replace_dimension(x, part, place, whole(part.shape[place])) for part in result)
    piece = dimension(sizes[0], walk.where, walk.depth)
    walk.unite(x.dims[place], piece * len(sizes))
    return tuple(_replace_dimension(x, part, place, piece) for part in result)


def _replace_dimension(x: Traced, tensor: Tensor, place: int, dim: Dimension) -> Traced:
    return Traced(tensor, (*x.dims[:place], dim, *x.dims[place + 1 :]))


def reduce(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """mean, sum, max, ...: a reduced dimension disappears, or keeps one entry."""
    x = args[0]
    named = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    reduced = range(len(x.shape)) if named is None else [named] if isinstance(named, int) else named
    places = {place % len(x.shape) for place in reduced}
    first = result if isinstance(result, Tensor) else result[0]
    kept = first.dim() == len(x.shape)
    dims = tuple(whole(1) if p in places else d for p, d in enumerate(x.dims) if kept or p not in places)
    return Traced(result, dims) if isinstance(result, Tensor) else tuple(Traced(r, dims) for r in result)


def matmul(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Product of matrices: from shapes (..., a, b) and (..., b, c) to (..., a, c)."""
    a, b = args[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        raise walk.refuse("a product with a vector")
    walk.unite(a.dims[-1], b.dims[-2])
    for back in range(3, 1 + min(len(a.shape), len(b.shape))):
        if a.shape[-back] == b.shape[-back]:
            walk.unite(a.dims[-back], b.dims[-back])
    batch = a.dims[:-2] if len(a.shape) >= len(b.shape) else b.dims[:-2]
    return Traced(result, (*batch, a.dims[-2], b.dims[-1]))


def scaled_dot_product(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Attention of query (..., length, d), key and value: the shape (..., length, d of the value)."""
    query, key, value = args[:3]
    walk.unite(query.dims[-1], key.dims[-1])
    walk.unite(key.dims[-2], value.dims[-2])
    for one, other in zip(query.dims[:-2], key.dims[:-2], strict=True):
        walk.unite(one, other)
    return Traced(result, (*query.dims[:-1], value.dims[-1]))


def pool(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Pooling, padding, interpolation: dimensions of the shape whose size changes are places, which stay whole."""
    x = args[0]
    dims = []
    for size, before, dim in zip(result.shape, x.shape, x.dims, strict=True):
        if size != before and not is_whole(dim):
            walk.keep_whole([dim])
        dims.append(dim if size == before else whole(size))
    return Traced(result, tuple(dims))


def index(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """``x[...]``: a full slice keeps a dimension, a number drops it, anything else marks it as never cut."""
    x, key = args
    if not isinstance(x, Traced):
        return x[key]
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, Traced)]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        real = sum(k is not None for k in keys) - 1
        keys[at : at + 1] = [slice(None)] * (len(x.shape) - real)
    dims: list[Dimension] = []
    place = 0
    for item in keys:
        if item is None:
            dims.append(whole(1))
            continue
        dim, place = x.dims[place], place + 1
        if item == slice(None) and isinstance(item, slice):
            dims.append(dim)
            continue
        walk.keep_whole([dim])
        if isinstance(item, slice):
            dims.append(whole(result.shape[len(dims)]))
        elif not isinstance(item, int):
            raise walk.refuse("indexing by a tensor or a list")
    return Traced(result, (*dims, *x.dims[place:]))


def expand(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Tensor) -> Traced:
    """Expand or repeat a tensor to a larger shape; dimensions that grow are never cut."""
    x = args[0]
    before = (*[1] * (result.dim() - len(x.shape)), *x.shape)
    dims = (*(whole(1) for _ in range(result.dim() - len(x.shape))), *x.dims)
    if called == "repeat":
        walk.keep_whole([d for d, n, m in zip(dims, before, result.shape, strict=True) if n != m])
    return Traced(result, tuple(d if n == m else whole(m)
                                for d, n, m in zip(dims, before, result.shape, strict=True)))  # fmt: skip


def shape_of(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Sizes as plain numbers; a cut model computes its own."""
    return tuple(result) if isinstance(result, torch.Size) else result


def get_attribute(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Attributes of a tensor: its shape, dtype, device and transposes; others are refused."""
    x, name = args
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
    walk.unite(x.dims[-1], weight.dims[1])
    for vector in bias:
        if vector is not None:
            walk.unite(weight.dims[0], vector.dims[0])
    return Traced(result, (*x.dims[:-1], weight.dims[0]))


def create(walk: Walk, called: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Create a tensor from sizes and numbers alone, such as positions or zeros; it is never cut."""
    return all_whole(result)


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
    "logsigmoid", "softmax", "log_softmax", "softmin", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "erf",
    "log1p", "expm1", "floor", "ceil", "round", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_dropout", "detach", "clone", "contiguous", "float", "half", "bfloat16", "double", "to", "type_as",
    "normalize", "masked_fill", "lerp", "sign", "reciprocal", "bool", "long", "int", "logical_not", "logical_and",
    "logical_or", "addcmul", "addcdiv",
)  # fmt: skip
_RULES: list[tuple[Rule, tuple[str, ...]]] = [
    (elementwise, _ELEMENTWISE),
    (reshape, ("flatten", "reshape", "view", "unflatten", "squeeze", "unsqueeze", "ravel")),
    (permute, ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t")),
    (concatenate, ("cat", "concat", "concatenate")),
    (stack, ("stack",)),
    (chunk, ("chunk", "split", "tensor_split")),
    (reduce, ("mean", "sum", "amax", "amin", "max", "min", "std", "var", "norm", "logsumexp", "prod", "argmax")),
    (matmul, ("matmul", "bmm", "mm", "__matmul__")),
    (scaled_dot_product, ("scaled_dot_product_attention",)),
    (pool, ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
            "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
            "adaptive_max_pool2d", "adaptive_max_pool3d", "pad", "interpolate")),
    (index, ("getitem", "__getitem__", "select")),
    (expand, ("expand", "expand_as", "repeat")),
    (shape_of, ("size", "dim", "numel", "len")),
    (linear, ("linear",)),
    (create, ("arange", "zeros", "ones", "full", "tensor", "zeros_like", "ones_like", "tril", "triu", "eye",
                   "linspace")),
]  # fmt: skip
METHODS: dict[str, Rule] = {name: rule for rule, names in _RULES for name in names}
FUNCTIONS: dict[Callable[..., Any], Rule] = {
    **{function: rule for rule, names in _RULES for function in _functions(*names)},
    getattr: get_attribute,
    len: shape_of,
}
