"""Cut a torch module to a sub-model: parameters in the slice's shapes, and every attribute that depends on them."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedquilt_common.models.exits import MultiExit
from fedquilt_common.models.static_norm import Scaler
from fedquilt_common.submodels.selectors import length, take
from fedquilt_common.submodels.slices import Axis, Slice
from fedquilt_common.tracing.attention import CutAttention
from fedquilt_common.tracing.building import build_on_meta, find_owner
from fedquilt_common.tracing.trace import Blueprint, ForwardPass
from fedquilt_common.tracing.tracer import Path

Make = Callable[[tuple[int, ...], torch.dtype, str], Tensor]
"""Makes a tensor of a shape and dtype on a device."""


def _make_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def cut_module(
    build: Callable[[], nn.Module], blueprint: Blueprint, part: Slice, make: Make = _make_zeros
) -> nn.Module:
    """Build the sub-model ``part`` as a module of its own on the CPU; its parameters have no meaningful numbers yet.

    The whole model is built without its numbers, so a board needs memory for its part only.

    Args:
        build: makes the whole model.
        blueprint: how it is cut.
        part: a slice of the blueprint's anatomy.
        make: makes the parameters and buffers; zeros by default.
    """
    return cut_in_place(_build_without_numbers(build, blueprint), blueprint, part, "cpu", make)


def cut_in_place(
    module: nn.Module, blueprint: Blueprint, part: Slice, device: str, make: Make = _make_zeros
) -> nn.Module:
    """Cut ``module`` in place to ``part``, a slice of the blueprint's anatomy, with new tensors on ``device``."""
    _cut_tensors(module, part, device, make)
    _cut_constants(module, blueprint, part, device)
    for (name, attribute), axes in blueprint.attributes.items():
        _cut_attribute(module, name, attribute, axes, part)
    for name, child in list(module.named_modules()):
        if isinstance(child, nn.MultiheadAttention):
            _replace_module(module, name, CutAttention(child))
        elif isinstance(child, MultiExit):
            child.cut(_count_exits(name, child, part))
    if blueprint.passes:
        run_graphs(module, blueprint, part, device)
    return module


def _build_without_numbers(build: Callable[[], nn.Module], blueprint: Blueprint) -> nn.Module:
    """Build without numbers, unless there are buffers outside the state dict, which must be computed."""
    return build() if blueprint.constants else build_on_meta(build)


def _cut_tensors(module: nn.Module, part: Slice, device: str, make: Make) -> None:
    """Replace parameters and buffers; a tensor that has two names keeps both."""
    fresh: dict[int, Any] = {}
    state = dict(module.state_dict(keep_vars=True))
    for name, tensor in state.items():
        if name in part.absent:
            continue
        if id(tensor) not in fresh:
            fresh[id(tensor)] = _new_tensor(tensor, make(part.shapes[name], tensor.dtype, device))
        _set_tensor(module, name, fresh[id(tensor)])


def _new_tensor(tensor: Tensor, new: Tensor) -> Tensor:
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _set_tensor(module: nn.Module, name: str, tensor: Tensor) -> None:
    setattr(*find_owner(module, name), tensor)


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
    """Put a module in the place of another one, with its hooks."""
    vars(new).update({key: value for key, value in vars(module.get_submodule(name)).items() if "_hook" in key})
    setattr(*find_owner(module, name), new)


def _count_exits(name: str, module: MultiExit, part: Slice) -> int:
    """Count the exits that the sub-model has, from the shallow end."""
    prefix = f"{name}." if name else ""
    state = module.state_dict()
    present = {int(key.split(".")[1]) for key in state if key.startswith("exits.") and prefix + key not in part.absent}
    return 1 + max(present, default=0)


def run_graphs(module: nn.Module, blueprint: Blueprint, part: Slice, device: str) -> None:
    """Make the module run its traced graphs, with the sizes of the sub-model where code contains the whole model's."""
    for traced in blueprint.passes.values():
        for name, constant in traced.constants.items():
            _set_constant(module, name, constant.to(device))
    passes = {training: _cut_pass(module, traced, part) for training, traced in blueprint.passes.items()}

    def forward(self: nn.Module, x: Tensor) -> Any:
        return passes[self.training](self, x)

    module.forward = types.MethodType(forward, module)


def _set_constant(module: nn.Module, name: str, constant: Tensor) -> None:
    """Make a tensor a buffer outside the state, which moves to other devices with the module."""
    place, leaf = find_owner(module, name)
    if leaf in place.__dict__:
        delattr(place, leaf)
    place.register_buffer(leaf, constant, persistent=False)


def _cut_pass(module: nn.Module, traced: ForwardPass, part: Slice) -> Callable[[nn.Module, Tensor], Any]:
    """Return the forward function of a traced pass in the sub-model."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(traced.graph, copied))
    twins = {node.name: twin for node, twin in copied.items()}
    for (name, path), axes in traced.rewrites.items():
        twin, size = twins[name], _size_of(axes, part)
        if isinstance(path[0], str):
            twin.kwargs = _with_size(twin.kwargs, path, size)
        else:
            twin.args = _with_size(twin.args, path, size)
    forward: Callable[[nn.Module, Tensor], Any] = type(fx.GraphModule(module, graph)).forward
    return forward


def _size_of(axes: Axis | tuple[Axis, ...], part: Slice) -> int | list[int]:
    if axes and isinstance(axes[0], tuple):
        return [part.length(axis) for axis in axes]
    return part.length(axes)  # type: ignore[arg-type]


def _with_size(value: Any, path: Path, size: int | list[int]) -> Any:
    """Return a copy of nested arguments with another size at ``path``."""
    if not path:
        return size
    key, rest = path[0], path[1:]
    if isinstance(value, slice):
        bounds = {name: getattr(value, name) for name in ("start", "stop", "step")}
        return slice(*{**bounds, str(key): size}.values())
    if isinstance(value, Mapping):
        return {**value, key: _with_size(value[key], rest, size)}
    items = list(value)
    items[int(key)] = _with_size(items[int(key)], rest, size)
    return items if isinstance(value, list) else tuple(items)
