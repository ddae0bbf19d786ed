"""Cut a torch module to a sub-model: parameters in the slice's shapes, and every attribute that depends on them."""

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
from fedquilt_common.tracing.trace import Blueprint, build_on_meta


def cut_module(build: Callable[[], nn.Module], blueprint: Blueprint, part: Slice) -> nn.Module:
    """Build the sub-model ``part`` as a module of its own on the CPU; its parameters have no meaningful numbers yet.

    The whole model is built without its numbers, so a board needs memory for its part only.
    """
    return cut_in_place(_build_without_numbers(build, blueprint), blueprint, part, "cpu")


def cut_in_place(module: nn.Module, blueprint: Blueprint, part: Slice, device: str) -> nn.Module:
    """Cut ``module`` in place to ``part``, a slice of the blueprint's anatomy, with new tensors on ``device``."""
    _cut_tensors(module, part, device)
    _cut_constants(module, blueprint, part, device)
    for (name, attribute), axes in blueprint.attributes.items():
        _cut_attribute(module, name, attribute, axes, part)
    for name, child in list(module.named_modules()):
        if isinstance(child, nn.MultiheadAttention):
            _replace_module(module, name, CutAttention(child))
        elif isinstance(child, MultiExit):
            child.cut(_count_exits(name, child, part))
    if blueprint.rewrites:
        _rewrite_forward(module, blueprint, part)
    return module


def _build_without_numbers(build: Callable[[], nn.Module], blueprint: Blueprint) -> nn.Module:
    """Build without numbers, unless there are buffers outside the state dict, which must be computed."""
    return build() if blueprint.constants else build_on_meta(build)


def _cut_tensors(module: nn.Module, part: Slice, device: str) -> None:
    """Replace parameters and buffers; a tensor that has two names keeps both."""
    fresh: dict[int, Any] = {}
    state = dict(module.state_dict(keep_vars=True))
    for name, tensor in state.items():
        if name in part.absent:
            continue
        if id(tensor) not in fresh:
            fresh[id(tensor)] = _new_tensor(tensor, part.shapes[name], device)
        _set_tensor(module, name, fresh[id(tensor)])


def _new_tensor(tensor: Tensor, shape: tuple[int, ...], device: str) -> Tensor:
    new = torch.zeros(shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _set_tensor(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, tensor)


def _cut_constants(module: nn.Module, blueprint: Blueprint, part: Slice, device: str) -> None:
    buffers = dict(module.named_buffers())
    for name, constant in blueprint.constants.items():
        chosen = tuple(part.select(axis) for axis in constant.axes)
        whole = buffers[name]
        if whole.is_meta:  # only shapes matter
            _set_tensor(module, name, whole.new_empty(tuple(map(length, chosen))))
        else:
            _set_tensor(module, name, torch.from_numpy(take(whole.cpu().numpy(), chosen).copy()).to(device))


def _cut_attribute(module: nn.Module, name: str, attribute: str, axes: Axis | tuple[Axis, ...], part: Slice) -> None:
    owner = module.get_submodule(name)
    if axes and isinstance(axes[0], tuple):
        setattr(owner, attribute, tuple(part.length(axis) for axis in axes))
    elif isinstance(owner, Scaler):
        owner.rate = part.length(axes) / part.whole_length(axes)  # type: ignore[arg-type]
    else:
        setattr(owner, attribute, part.length(axes))  # type: ignore[arg-type]


def _replace_module(module: nn.Module, name: str, new: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, new)


def _count_exits(name: str, module: MultiExit, part: Slice) -> int:
    """Count the exits that the sub-model has, from the shallow end."""
    prefix = f"{name}." if name else ""
    state = module.state_dict()
    present = {int(key.split(".")[1]) for key in state if key.startswith("exits.") and prefix + key not in part.absent}
    return 1 + max(present, default=0)


def _rewrite_forward(module: nn.Module, blueprint: Blueprint, part: Slice) -> None:
    """Make the module run its traced graph, with the sizes of the sub-model where code contains the whole model's."""
    for node in blueprint.graph.nodes:
        if "dropout" in str(node.target) and node.op == "call_function":
            raise UncuttableModelError(
                f"the model cannot be cut: '{node.name}': it has functional dropout and also sizes that are written "
                "into a view; use nn.Dropout, or -1 in the view"
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
