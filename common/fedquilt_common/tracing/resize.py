"""A module cut to a sub-model: parameters of the slice's shapes, and every attribute that follows them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.models.exits import MultiExit
from fedquilt_common.models.static_norm import Scaler
from fedquilt_common.submodels.selectors import length, take
from fedquilt_common.submodels.slices import Axis, Slice
from fedquilt_common.tracing.attention import CutAttention
from fedquilt_common.tracing.trace import Blueprint, on_meta


def cut_module(build: Callable[[], nn.Module], blueprint: Blueprint, part: Slice) -> nn.Module:
    """The sub-model as a module of its own on the CPU; its parameters hold no meaningful numbers yet.

    The whole model is built without its numbers, so a board never needs memory for more than its part.
    """
    return cut_in_place(_skeleton(build, blueprint), blueprint, part, "cpu")


def cut_in_place(module: nn.Module, blueprint: Blueprint, part: Slice, device: str) -> nn.Module:
    """Cut ``module`` itself to ``part``, with new tensors on ``device``; a slice of the blueprint's own anatomy."""
    _cut_tensors(module, part, device)
    _cut_constants(module, blueprint, part, device)
    for (name, attribute), axes in blueprint.attributes.items():
        _follow(module, name, attribute, axes, part)
    for name, child in list(module.named_modules()):
        if isinstance(child, nn.MultiheadAttention):
            _replace(module, name, CutAttention(child))
        elif isinstance(child, MultiExit):
            child.cut(_exits(name, child, part))
    if blueprint.rewrites:
        _rewrite(module, blueprint, part)
    return module


def _skeleton(build: Callable[[], nn.Module], blueprint: Blueprint) -> nn.Module:
    """Without numbers, unless there are buffers that are no part of the state and must be computed."""
    return build() if blueprint.constants else on_meta(build)


def _cut_tensors(module: nn.Module, part: Slice, device: str) -> None:
    """New parameters and buffers; what was one tensor under two names is one again."""
    fresh: dict[int, Any] = {}
    state = dict(module.state_dict(keep_vars=True))
    for name, tensor in state.items():
        if name in part.absent:
            continue
        if id(tensor) not in fresh:
            fresh[id(tensor)] = _fresh(tensor, part.shapes[name], device)
        _set(module, name, fresh[id(tensor)])


def _fresh(tensor: Tensor, shape: tuple[int, ...], device: str) -> Tensor:
    new = torch.zeros(shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, tensor)


def _cut_constants(module: nn.Module, blueprint: Blueprint, part: Slice, device: str) -> None:
    buffers = dict(module.named_buffers())
    for name, constant in blueprint.constants.items():
        chosen = tuple(part.select(axis) for axis in constant.axes)
        whole = buffers[name]
        if whole.is_meta:  # only shapes matter
            _set(module, name, whole.new_empty(tuple(map(length, chosen))))
        else:
            _set(module, name, torch.from_numpy(take(whole.cpu().numpy(), chosen).copy()).to(device))


def _follow(module: nn.Module, name: str, attribute: str, axes: Axis | tuple[Axis, ...], part: Slice) -> None:
    owner = module.get_submodule(name)
    if axes and isinstance(axes[0], tuple):
        setattr(owner, attribute, tuple(part.length(axis) for axis in axes))
    elif isinstance(owner, Scaler):
        owner.rate = part.length(axes) / part.whole_length(axes)  # type: ignore[arg-type]
    else:
        setattr(owner, attribute, part.length(axes))  # type: ignore[arg-type]


def _replace(module: nn.Module, name: str, new: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, new)


def _exits(name: str, module: MultiExit, part: Slice) -> int:
    """How many exits are there, from the shallow end."""
    prefix = f"{name}." if name else ""
    state = module.state_dict()
    present = {int(key.split(".")[1]) for key in state if key.startswith("exits.") and prefix + key not in part.absent}
    return 1 + max(present, default=0)


def _rewrite(module: nn.Module, blueprint: Blueprint, part: Slice) -> None:
    """Run the traced graph, in which sizes of cut dimensions are no longer those of the whole model."""
    for node in blueprint.graph.nodes:
        if "dropout" in str(node.target) and node.op == "call_function":
            raise UncuttableModelError(
                f"the model cannot be cut: '{node.name}': functional dropout beside sizes that are written into a "
                "view; use nn.Dropout, or -1 in the view"
            )
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(blueprint.graph, copied))
    for node, twin in copied.items():
        for (name, path), axis in blueprint.rewrites.items():
            if node.name == name:
                twin.args = _with_size(twin.args, path, part.length(axis))
    forward = type(fx.GraphModule(module, graph)).forward
    module.forward = types.MethodType(forward, module)


def _with_size(args: Any, path: tuple[int, ...], size: int) -> Any:
    items = list(args)
    items[path[0]] = size if len(path) == 1 else _with_size(items[path[0]], path[1:], size)
    return tuple(items)
