"""Walk through a model's traced graph: run each operation on two empty samples, and apply its rule."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedquilt_common.errors import FedquiltError, UncuttableModelError
from fedquilt_common.tracing.channels import whole
from fedquilt_common.tracing.layer_kinds import layer_kind
from fedquilt_common.tracing.layers import LAYERS
from fedquilt_common.tracing.operations import BY_NAME, FUNCTIONS, METHODS, keep_constants_whole, pool, reshape
from fedquilt_common.tracing.outputs import SAMPLES
from fedquilt_common.tracing.partitions import construct
from fedquilt_common.tracing.shuffles import channel_shuffle, pixel_shuffle, pixel_unshuffle
from fedquilt_common.tracing.tracer import Rule, Traced, Walk, to_tensors
from fedquilt_common.tracing.transformers import BLOCKS

_RESHAPING: dict[type[nn.Module], Rule] = {
    nn.Flatten: reshape, nn.Unflatten: reshape, nn.Upsample: pool, nn.UpsamplingNearest2d: pool,
    nn.PixelShuffle: pixel_shuffle, nn.PixelUnshuffle: pixel_unshuffle, nn.ChannelShuffle: channel_shuffle,
}  # fmt: skip

_TAKES_APART = (operator.getitem, getattr)
"""Functions that take one item of a tuple and leave the others."""

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}
"""From names that torch's functions take for numpy's sake to their own."""


def check_gradient_hooks(module: nn.Module) -> None:
    """Refuse a module with parameters that have gradient hooks: sub-models have parameters of their own.

    Raises:
        UncuttableModelError: a parameter has one.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UncuttableModelError(
                f"the model cannot be cut: '{name}' has a gradient hook, as by register_hook(), which sub-models would "
                "train without; freeze a parameter with requires_grad_(False), multiply it by a mask in forward, or "
                "choose an algorithm that sends whole models"
            )


def run_graph(
    walk: Walk, module: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype
) -> list[Traced]:
    """Apply the rules to a traced forward pass, and return the model's outputs.

    Args:
        walk: records what the rules find.
        module: the model, whose numbers are never read.
        graph: its traced forward pass.
        shape: of one sample.
        dtype: of the samples.

    Raises:
        UncuttableModelError: there is no rule for an operation, or it does not run on such samples.
    """
    values: dict[fx.Node, Any] = {}
    first = next(iter(module.parameters()), torch.empty(0))
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = _trace_input(walk, node, values, first, shape, dtype)
        elif node.op == "output":
            outputs = _flatten(fx.node.map_arg(node.args[0], values.__getitem__))
            walk.keep_chosen_whole(outputs)
            return outputs
        else:
            values[node] = _trace_step(walk, module, node, values)
    return []


def _trace_input(
    walk: Walk, node: fx.Node, values: dict[fx.Node, Any], like: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Any:
    if values:
        if node.args:
            return node.args[0]
        walk.where = node.name
        raise walk.refuse("forward needs a second argument; a model receives only a batch of samples")
    tensor = torch.zeros((SAMPLES, *shape), dtype=dtype, device=like.device)
    x = Traced(tensor, tuple(whole(size, "the model's input") for size in tensor.shape))
    walk.note("input", (), x)
    return x


def _trace_step(walk: Walk, module: nn.Module, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    walk.where = str(node.target) if node.op in ("call_module", "get_attr") else node.name
    args, kwargs = _use_usual_names(
        fx.node.map_arg(node.args, values.__getitem__), fx.node.map_arg(node.kwargs, values.__getitem__)
    )
    if node.op == "get_attr":
        return _trace_attribute(walk, module, str(node.target))
    walk.owner_name, walk.is_layer = _owning_module(node), node.op == "call_module"
    walk.args, walk.kwargs = tuple(args), kwargs
    if not (args and isinstance(args[0], tuple) and node.target in _TAKES_APART):
        walk.keep_chosen_whole([args, dict(kwargs)])
    called, rule = _find_rule(walk, module, node)
    found = _execute(walk, called, to_tensors(args), to_tensors(kwargs))
    result = _apply(rule, walk, called, tuple(args), kwargs, found)
    if _kind_of(called) not in BLOCKS:  # their layers are recorded one by one
        walk.note(_name_of(called), [args, dict(kwargs)], result)
    return result


def _use_usual_names(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an operation under the names that the rules know; torch takes those of numpy as well."""
    named = {_NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
    return ((named.pop("input"),), named) if not args and "input" in named else (args, named)


def _trace_attribute(walk: Walk, module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, Tensor):
        return value
    if any(value is own for own in (*module.parameters(), *module.buffers())):
        return Traced(value, walk.of(name, value, walk.layers))
    why = f"'{name}' is a tensor that is neither a parameter nor a buffer; pass it to register_buffer()"
    if value.is_meta:  # built without its numbers, and no array has them
        raise walk.refuse(why)
    return Traced(value, tuple(whole(size, why) for size in value.shape))


def _find_rule(walk: Walk, module: nn.Module, node: fx.Node) -> tuple[Any, Rule]:
    called: Any = str(node.target) if node.op == "call_method" else node.target
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        _check_stored(walk, called)
        kind = _kind_of(called)
        rule, what = LAYERS.get(kind) or BLOCKS.get(kind) or _RESHAPING.get(kind), f"a {kind.__name__}"
    elif node.op == "call_method":
        rule, what = METHODS.get(called), f".{called}()"
    else:
        rule, what = _function_rule(called), f"{getattr(called, '__name__', called)}()"
    if rule is None and node.op != "call_module" and walk.is_constant([walk.args, dict(walk.kwargs)]):
        rule = keep_constants_whole
    if rule is None:
        walk.where = walk.owner_name or walk.where
        raise walk.refuse(f"nothing is known about the channels of {what}")
    return called, rule


def _kind_of(called: Any) -> Any:
    return layer_kind(called) if isinstance(called, nn.Module) else type(called)


def _name_of(called: Any) -> str:
    return called if isinstance(called, str) else str(getattr(called, "__name__", _kind_of(called).__name__))


def _check_stored(walk: Walk, layer: nn.Module) -> None:
    """Refuse a layer with a weight that it computes from other arrays: the rules cut weights that are arrays."""
    for part in layer.modules():
        computed = [name for name, value in vars(part).items() if isinstance(value, Tensor)]  # by a hook, as old torch
        for name in (*computed, *getattr(part, "parametrizations", ())):
            raise walk.refuse(
                f"its {name} is computed in each pass, as by weight_norm, so a cut layer would compute another one"
            )


def _function_rule(function: Any) -> Rule | None:
    if isinstance(function, type) and issubclass(function, tuple):
        return construct
    return FUNCTIONS.get(function) or BY_NAME.get(getattr(function, "__name__", ""))


def _owning_module(node: fx.Node) -> str:
    """Name of the submodule whose forward contains the node."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(list(stack)), "") if stack else ""


def _apply(rule: Rule, walk: Walk, called: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """Apply a rule; arguments that it does not expect are an error that names the operation."""
    try:
        return rule(walk, called, args, kwargs, found)
    except FedquiltError:
        raise
    except Exception as error:
        raise walk.refuse(
            f"{_name_of(called)}() has arguments whose channels cannot be followed ({error!r})"
        ) from error


def _execute(walk: Walk, called: Any, args: Any, kwargs: Any) -> Any:
    try:
        if isinstance(called, str):
            return getattr(args[0], called)(*args[1:], **kwargs)
        return called(*args, **kwargs)
    except Exception as error:  # torch raises several kinds of error for shapes that do not fit
        raise walk.refuse(f"it does not run on a sample of this shape: {error}") from error


def _flatten(value: Any) -> list[Traced]:
    if isinstance(value, Traced):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [found for item in value for found in _flatten(item)] if isinstance(value, list | tuple) else []
