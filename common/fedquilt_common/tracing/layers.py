"""Rules for the layers of ``torch.nn``: how the channels of input, parameters and output belong together.

A grouped layer (grouped convolution, group norm) of G groups of M channels is cut by whole groups if G >= M, as
depthwise convolutions are, and otherwise alike within each group. Either way each channel stays in its group, and
the group count divides the channels. ``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedquilt_common.models.attention import Attention
from fedquilt_common.models.static_norm import Scaler, StaticBatchNorm
from fedquilt_common.tracing.channels import Dimension, dimension, keep_whole, whole
from fedquilt_common.tracing.layer_kinds import layer_kind
from fedquilt_common.tracing.partitions import glu, pad_layer
from fedquilt_common.tracing.tracer import (
    KERNEL,
    ONE_GROUP,
    Rule,
    Traced,
    Walk,
    normalise_over,
    traced_in,
    unite_elementwise,
)

GATES: dict[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1, nn.LSTMCell: 4, nn.GRUCell: 3, nn.RNNCell: 1}


def own_dimensions(walk: Walk, module: nn.Module, name: str) -> tuple[Dimension, ...]:
    """Dimensions of the module's own tensor ``name``; () if it has none."""
    tensor = getattr(module, name, None)
    return () if tensor is None else walk.of(f"{walk.where}.{name}".removeprefix("."), tensor)


def _follow(walk: Walk, **attributes: Dimension | tuple[Dimension, ...]) -> None:
    """Record attributes of the present layer that must have the cut lengths of these dimensions."""
    for name, dim in attributes.items():
        walk.attributes[walk.where, name] = dim


def _share(walk: Walk, module: nn.Module, names: tuple[str, ...], dim: Dimension) -> None:
    """Unite ``dim`` with the dimension of each of the module's vectors ``names``."""
    for name in names:
        for vector in own_dimensions(walk, module, name):
            walk.unite(dim, vector)


def linear(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.Linear``: from shape (..., inputs) to (..., outputs)."""
    (x,) = args
    walk.next_layer()
    rows, columns = own_dimensions(walk, module, "weight")
    walk.unite(x.dims[-1], columns)
    _share(walk, module, ("bias",), rows)
    _follow(walk, in_features=columns, out_features=rows)
    return Traced(result, (*x.dims[:-1], rows))


def convolution(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """Convolutions, even transposed and grouped ones: from shape (n, inputs, places...) to (n, outputs, places...)."""
    x, spatial = args[0], len(module.kernel_size)
    channels = x.dims[-spatial - 1]
    walk.next_layer()
    weight = own_dimensions(walk, module, "weight")
    inputs, outputs = (
        _grouped_dimensions(walk, module, weight) if module.groups > 1 else _dense_dimensions(module, weight)
    )
    walk.keep_whole(weight[2:], KERNEL)
    walk.keep_whole(x.dims[-spatial:])
    walk.unite(channels, inputs)
    _share(walk, module, ("bias",), outputs)
    _follow(walk, in_channels=inputs, out_channels=outputs)
    places = tuple(whole(size) for size in result.shape[-spatial:])
    return Traced(result, (*x.dims[: -spatial - 1], outputs, *places))


def _dense_dimensions(module: Any, weight: tuple[Dimension, ...]) -> tuple[Dimension, Dimension]:
    return (weight[0], weight[1]) if module.transposed else (weight[1], weight[0])


def _grouped_dimensions(walk: Walk, module: Any, weight: tuple[Dimension, ...]) -> tuple[Dimension, Dimension]:
    """Dimensions of the inputs and outputs of a grouped convolution.

    Its weight has shape (outputs, inputs of one group, ...); transposed, (inputs, outputs of one group, ...).
    """
    groups = module.groups
    long, short = (module.in_channels, module.out_channels) if module.transposed else (
        module.out_channels, module.in_channels)  # fmt: skip
    if groups >= max(long, short) // groups:
        unit = dimension(groups, walk.where, walk.depth)
        many, few = _widen(unit, long // groups), _widen(unit, short // groups)
        keep_whole(weight[1], ONE_GROUP)
        _follow(walk, groups=unit)
    else:
        many = dimension(long // groups, walk.where, walk.depth) * groups
        few = weight[1] * groups
    walk.unite(weight[0], many)
    return (many, few) if module.transposed else (few, many)


def _widen(units: Dimension, inner: int) -> Dimension:
    return tuple(type(piece)(piece.channels, piece.inner * inner) for piece in units)


def batch_norm(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """Batch and instance norms: shape (n, channels, ...) stays."""
    (x,) = args
    batched = 0 if isinstance(module, nn.modules.instancenorm._InstanceNorm) and _is_unbatched(module, x) else 1
    channels = x.dims[batched]
    _share(walk, module, ("weight", "bias", "running_mean", "running_var"), channels)
    if hasattr(module, "num_features"):
        _follow(walk, num_features=channels)
    return Traced(result, x.dims)


def _is_unbatched(module: Any, x: Traced) -> bool:
    return bool(len(x.shape) == module._get_no_batch_dim())


def group_norm(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.GroupNorm``: shape (n, channels, ...) stays; channels are cut by groups, or alike within each."""
    (x,) = args
    channels, groups = x.dims[1], module.num_groups
    size = module.num_channels // groups
    if groups >= size:
        units = dimension(groups, walk.where, walk.depth)
        walk.unite(channels, _widen(units, size))
        _follow(walk, num_groups=units)
    else:
        walk.unite(channels, dimension(size, walk.where, walk.depth) * groups)
    _share(walk, module, ("weight", "bias"), channels)
    _follow(walk, num_channels=channels)
    return Traced(result, x.dims)


def layer_norm(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.LayerNorm`` and ``nn.RMSNorm``: shape (..., *normalized_shape) stays."""
    (x,) = args
    last = x.dims[-len(module.normalized_shape) :]
    for name in ("weight", "bias"):
        for dim, parameter in zip(last, own_dimensions(walk, module, name), strict=False):
            walk.unite(dim, parameter)
    _follow(walk, normalized_shape=tuple(last))
    return Traced(result, x.dims)


def embedding(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.Embedding``: from numbers of shape (...) to (..., embedding); rows of the weight are never cut."""
    (x,) = args
    walk.next_layer()
    rows, columns = own_dimensions(walk, module, "weight")
    keep_whole(rows, f"'{walk.where}' looks its rows up by number")
    _follow(walk, embedding_dim=columns)
    return Traced(result, (*x.dims, columns))


def recurrent(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
    """LSTM, GRU and RNN: all layers and directions keep the same hidden channels, because they have one size."""
    if getattr(module, "proj_size", 0):
        raise walk.refuse("a recurrent layer with proj_size")
    x, gates = args[0], GATES[layer_kind(module)]
    walk.keep_whole(x.dims[:-1])  # a step less is not a step of zeros
    walk.next_layer()
    hidden = dimension(module.hidden_size, walk.where, walk.depth)
    directions = 2 if module.bidirectional else 1
    inputs = x.dims[-1]
    _follow(walk, input_size=inputs, hidden_size=hidden)
    for layer in range(module.num_layers):
        for suffix in [f"_l{layer}", f"_l{layer}_reverse"][:directions]:
            _unite_gates(walk, module, suffix, inputs, hidden, gates)
        inputs = hidden * directions
    output, state = result
    last = tuple(Traced(s, (*map(whole, s.shape[:-1]), hidden)) for s in (state if gates == 4 else [state]))
    for initial in traced_in([args[1:], dict(kwargs)]):
        walk.unite(initial.dims[-1], hidden)
    return Traced(output, (*x.dims[:-1], hidden * directions)), last if gates == 4 else last[0]


def _unite_gates(walk: Walk, module: Any, suffix: str, inputs: Dimension, hidden: Dimension, gates: int) -> None:
    """Unite the arrays of one layer and direction with its inputs and with the hidden channels of all gates."""
    rows, columns = own_dimensions(walk, module, f"weight_ih{suffix}")
    again, back = own_dimensions(walk, module, f"weight_hh{suffix}")
    walk.unite(inputs, columns)
    walk.unite(hidden, back)
    biases = (f"bias_{part}{suffix}" for part in ("ih", "hh"))
    for vector in (rows, again, *(dim for name in biases for dim in own_dimensions(walk, module, name))):
        walk.unite(hidden * gates, vector)


def recurrent_cell(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
    """LSTM, GRU and RNN cells: from shape (n, inputs) to (n, hidden), and the LSTM's cell state alike."""
    x = args[0]
    walk.next_layer()
    hidden = dimension(module.hidden_size, walk.where, walk.depth)
    _follow(walk, input_size=x.dims[-1], hidden_size=hidden)
    _unite_gates(walk, module, "", x.dims[-1], hidden, GATES[layer_kind(module)])
    for state in traced_in([args[1:], dict(kwargs)]):
        walk.unite(state.dims[-1], hidden)
    dims = (*x.dims[:-1], hidden)
    return tuple(Traced(one, dims) for one in result) if isinstance(result, tuple) else Traced(result, dims)


def multihead_attention(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
    """``nn.MultiheadAttention``: inputs and outputs are cut freely, the inside alike within each head."""
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise walk.refuse("attention with kdim, vdim, bias_kv or zero_attn")
    inputs = (*args[:3], *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))
    walk.next_layer()
    rows, columns = own_dimensions(walk, module, "in_proj_weight")
    head = dimension(module.head_dim, walk.where, walk.depth)
    _follow(walk, embed_dim=columns, head_dim=head)
    within = head * module.num_heads
    for x in inputs:
        walk.unite(x.dims[-1], columns)
        walk.keep_whole(x.dims[:-1])
    for stacked in (rows, *own_dimensions(walk, module, "in_proj_bias")):
        walk.unite(within * 3, stacked)
    out, inside = walk.of(f"{walk.where}.out_proj.weight", module.out_proj.weight)
    walk.unite(within, inside)
    if module.out_proj.bias is not None:
        walk.unite(out, walk.of(f"{walk.where}.out_proj.bias", module.out_proj.bias)[0])
    walk.keep_masks_whole([args, dict(kwargs)], inputs)
    attended, weights = result
    scores = None if weights is None else Traced(weights, tuple(map(whole, weights.shape)))
    return Traced(attended, (*inputs[0].dims[:-1], out)), scores


def attention(walk: Walk, module: Attention, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``models.attention.Attention``: shape (n, length, embed) stays; projections are cut alike within each head."""
    x, name = args[0], walk.where
    walk.next_layer()
    inside = {}
    for part in ("query", "key", "value", "out"):
        layer = getattr(module, part)
        rows, columns = walk.of(f"{name}.{part}.weight", layer.weight)
        for vector in () if layer.bias is None else walk.of(f"{name}.{part}.bias", layer.bias):
            walk.unite(rows, vector)
        walk.attributes[f"{name}.{part}", "in_features"] = columns
        walk.attributes[f"{name}.{part}", "out_features"] = rows
        inside[part] = rows, columns
    heads = dimension(inside["query"][0][0].channels.size // module.heads, name, walk.depth) * module.heads
    for part in ("query", "key", "value"):
        walk.unite(heads, inside[part][0])
        walk.unite(x.dims[-1], inside[part][1])
    walk.unite(heads, inside["out"][1])
    return Traced(result, (*x.dims[:-1], inside["out"][0]))


def pooling(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """Pooling: shape (n, channels, places...) with other places, which are never cut."""
    (x,) = args
    spatial = int(layer_kind(module).__name__[-2])
    walk.keep_whole(x.dims[-spatial:])
    return Traced(result, (*x.dims[:-spatial], *(whole(size) for size in result.shape[-spatial:])))


def prelu(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.PReLU``: shape (n, channels, ...) stays; its parameters may follow the channels."""
    (x,) = args
    if module.num_parameters > 1:
        _share(walk, module, ("weight",), x.dims[1])
        _follow(walk, num_parameters=x.dims[1])
    return Traced(result, x.dims)


def same_shape(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """Activations, dropout and other layers that keep the shape and relate no channels."""
    return unite_elementwise(walk, [args[0]], result)


def softmax(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.Softmax`` and others: the shape stays; the places that share their sum of 1 are never cut."""
    return Traced(result, normalise_over(walk, args[0], getattr(module, "dim", -3)).dims)  # Softmax2d has no dim


def gated(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.GLU``: both halves of one dimension of the shape share one index set."""
    return glu(walk, "glu", (args[0], module.dim), {}, result)


def scaler(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``Scaler``: the shape stays; its rate is the part of the channels that a sub-model keeps (HeteroFL)."""
    walk.attributes[walk.where, "rate"] = args[0].dims[1]
    return Traced(result, args[0].dims)


LAYERS: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution, nn.Conv2d: convolution, nn.Conv3d: convolution,
    nn.ConvTranspose1d: convolution, nn.ConvTranspose2d: convolution, nn.ConvTranspose3d: convolution,
    nn.BatchNorm1d: batch_norm, nn.BatchNorm2d: batch_norm, nn.BatchNorm3d: batch_norm, StaticBatchNorm: batch_norm,
    nn.InstanceNorm1d: batch_norm, nn.InstanceNorm2d: batch_norm, nn.InstanceNorm3d: batch_norm,
    nn.GroupNorm: group_norm, nn.LayerNorm: layer_norm, nn.RMSNorm: layer_norm,
    nn.Embedding: embedding,
    nn.LSTM: recurrent, nn.GRU: recurrent, nn.RNN: recurrent,
    nn.LSTMCell: recurrent_cell, nn.GRUCell: recurrent_cell, nn.RNNCell: recurrent_cell,
    nn.MultiheadAttention: multihead_attention, Attention: attention,
    nn.PReLU: prelu, Scaler: scaler, nn.GLU: gated,
    **dict.fromkeys([nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin], softmax),
    **dict.fromkeys([
        nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.LPPool1d, nn.LPPool2d,
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
        nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    ], pooling),
    **dict.fromkeys([
        nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
        nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d,
        nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d,
    ], pad_layer),
    **dict.fromkeys([
        nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
        nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Threshold,
        nn.RReLU, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink,
    ], same_shape),
}  # fmt: skip
"""Rules by layer; ``graph_walk`` adds the layers that only change the shape."""
