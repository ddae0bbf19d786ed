"""Find the channel groups of a torch module: symbolic tracing, then one walk over the graph.

The walk runs the model's operations on two empty samples (shape propagation). To each it applies the rule that defines
how the channels of its inputs and outputs belong together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.models.exits import MultiExit
from fedquilt_common.models.static_norm import StaticBatchNorm
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Axis, Group, Segment
from fedquilt_common.tracing.channels import Channels, Dimension, keep_whole, resolve, whole
from fedquilt_common.tracing.heads import heads_of
from fedquilt_common.tracing.layers import LAYERS
from fedquilt_common.tracing.operations import FUNCTIONS, METHODS, pool, reshape
from fedquilt_common.tracing.tracer import EXPECTED, Rule, Traced, Walk, to_tensors

_OURS = ("fedquilt_common.models.attention", "fedquilt_common.models.static_norm")
_RESHAPING: dict[type[nn.Module], Rule] = {
    nn.Flatten: reshape, nn.Unflatten: reshape, nn.Upsample: pool, nn.UpsamplingNearest2d: pool,
}  # fmt: skip
BATCH = 2
"""Samples of the traced batch; a single one could not be told from a dimension that is broadcast."""


@dataclass(frozen=True)
class Step:
    """One operation of the forward pass.

    Attributes:
        name: of the layer, or of the operation in the graph.
        kind: the layer's class, or the function's name.
        inputs: positions of the steps whose results it takes.
        axes: dimensions of its result, for a batch of ``BATCH`` samples.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Blueprint:
    """How a model is cut: its channel groups, and everything in the module that depends on them.

    Attributes:
        anatomy: channel groups and arrays.
        attributes: from (module, attribute) to the dimensions whose lengths it must have.
        constants: buffers that are not part of the state dict; every board computes its own.
        rewrites: from (node, path of the argument) to the dimension whose size the model's code contains.
        graph: the traced forward pass.
        steps: the operations of the forward pass.
        parameters: names of the arrays that are trained, tied ones once.
    """

    anatomy: Anatomy
    attributes: Mapping[tuple[str, str], Axis | tuple[Axis, ...]]
    constants: Mapping[str, ArrayAnatomy]
    rewrites: Mapping[tuple[str, tuple[int, ...]], Axis]
    graph: fx.Graph
    steps: tuple[Step, ...]
    parameters: frozenset[str]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__ in _OURS or super().is_leaf_module(m, module_qualified_name)


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build the module without its numbers if the factory allows that; else build the real one."""
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # a factory that reads its numbers; a wrong one raises again without the meta device
        return build()


def materialise(module: nn.Module) -> None:
    """Allocate memory for tensors on the meta device, in place; pages that are never written cost nothing."""
    fresh: dict[int, Any] = {}
    tensors = {**module.state_dict(keep_vars=True), **dict(module.named_buffers())}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            if id(tensor) not in fresh:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype)
                fresh[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, fresh[id(tensor)])


def blueprint_of(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Blueprint:
    """Find how a module can be cut.

    Args:
        module: the model.
        input_shape: shape of one sample.
        dtype: of the samples.

    Raises:
        UncuttableModelError: the model has a layer or an operation for which there is no rule.
    """
    walk = Walk(module)
    graph = trace_graph(module)
    with _evaluation_mode(module), torch.no_grad():
        outputs = _run_graph(walk, module, graph, input_shape, dtype)
    return _make_blueprint(walk, module, graph, outputs)


def blueprint_for(build: Callable[[], nn.Module], x: NDArray[Any]) -> Blueprint:
    """Blueprint of the model that ``build`` makes, for samples like those in ``x``, shape (n, *input_shape)."""
    module = build_on_meta(build)
    materialise(module)  # on the meta device, torch would import its compiler
    return blueprint_of(module, tuple(x.shape[1:]), torch.float32 if x.dtype.kind == "f" else torch.int64)


def anatomy_of(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Anatomy:
    """Channel groups and arrays of ``module``; see ``blueprint_of`` for arguments and errors."""
    return blueprint_of(module, input_shape, dtype).anatomy


def trace_graph(module: nn.Module) -> fx.Graph:
    """Trace the module's forward pass in its present mode, training or evaluation.

    Raises:
        UncuttableModelError: forward cannot be traced.
    """
    try:
        return _Tracer().trace(module)
    except Exception as error:  # a user's forward can raise anything when it is traced
        place = _locate_error(module, error)
        raise UncuttableModelError(
            f"the model cannot be cut: '{place}' cannot be traced: {type(error).__name__}: {error}; forward must not "
            "branch on its input or read its numbers; rewrite it, or choose an algorithm that sends whole models"
        ) from error


def _locate_error(module: nn.Module, error: BaseException) -> str:
    """Name of the innermost module whose forward was running."""
    place, trace = type(module).__name__, error.__traceback__
    known = {type(part): name for name, part in module.named_modules() if name}
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if trace.tb_frame.f_code.co_name == "forward" and type(owner) in known:
            place = known[type(owner)]
        trace = trace.tb_next
    return place


@contextlib.contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


def _run_graph(
    walk: Walk, module: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype
) -> list[Traced]:
    values: dict[fx.Node, Any] = {}
    first = next(iter(module.parameters()), torch.empty(0))
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = _trace_input(walk, node, values, first, shape, dtype)
        elif node.op == "output":
            return _flatten(fx.node.map_arg(node.args[0], values.__getitem__))
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
    tensor = torch.zeros((BATCH, *shape), dtype=dtype, device=like.device)
    x = Traced(tensor, tuple(whole(size, "the model's input") for size in tensor.shape))
    walk.note("input", (), x)
    return x


def _trace_step(walk: Walk, module: nn.Module, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    walk.where = str(node.target) if node.op in ("call_module", "get_attr") else node.name
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.op == "get_attr":
        return _trace_attribute(walk, module, str(node.target))
    called, rule = _find_rule(walk, module, node)
    result = rule(walk, called, tuple(args), kwargs, _execute(walk, called, to_tensors(args), to_tensors(kwargs)))
    kind = called if isinstance(called, str) else getattr(called, "__name__", type(called).__name__)
    walk.note(kind, [args, dict(kwargs)], result)
    return result


def _trace_attribute(walk: Walk, module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return Traced(value, walk.of(name, value)) if isinstance(value, Tensor) else value


def _find_rule(walk: Walk, module: nn.Module, node: fx.Node) -> tuple[Any, Rule]:
    layer: Any
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        rule = LAYERS.get(type(layer)) or _RESHAPING.get(type(layer))
        what = f"nothing is known about the channels of a {type(layer).__name__}"
    elif node.op == "call_method":
        layer, rule = str(node.target), METHODS.get(str(node.target))
        what = f"nothing is known about the channels of .{node.target}()"
    else:
        layer = node.target
        rule = FUNCTIONS.get(layer)
        what = f"nothing is known about the channels of {getattr(layer, '__name__', layer)}()"
    if rule is None:
        walk.where = _owning_module(node) or walk.where
        raise walk.refuse(what)
    return layer, rule


def _owning_module(node: fx.Node) -> str:
    """Name of the submodule whose forward contains the node."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(list(stack)), "") if stack else ""


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


def _make_blueprint(walk: Walk, module: nn.Module, graph: fx.Graph, outputs: list[Traced]) -> Blueprint:
    rows = {tuple(id(p.channels) for p in resolve(out.dims[-1])) for out in outputs}
    for out in outputs:
        for dim in out.dims:
            keep_whole(dim, "the model's output")
    state = dict(module.state_dict(keep_vars=True))
    known = {name: walk.tensors[id(t)][2] for name, t in state.items() if id(t) in walk.tensors}
    others = {name: b for name, b in module.named_buffers() if name not in state and id(b) in walk.tensors}
    groups = _groups([*known.values(), *(walk.tensors[id(b)][2] for b in others.values())])
    place = {id(channels): position for position, channels in enumerate(groups)}
    arrays = {name: _array(tensor, known.get(name), place, rows) for name, tensor in state.items()}
    norms = [name for name, part in module.named_modules() if isinstance(part, StaticBatchNorm)]
    statistics = tuple(f"{norm}.{kind}" for norm in norms for kind in ("running_mean", "running_var"))
    anatomy = Anatomy(
        _name_groups(groups, _channel_units(module)), arrays, _kept_whole(known), statistics, _exits(module),
        heads_of(module, graph), tuple(getattr(module, "start_layers", ())),
    )  # fmt: skip
    return Blueprint(
        anatomy,
        {key: _length_of(dim, place) for key, dim in walk.attributes.items()},
        {name: _array(b, walk.tensors[id(b)][2], place, set()) for name, b in others.items()},
        {key: _axis(dim, place) for key, dim in walk.rewrites.items()},
        graph,
        tuple(Step(o.name, o.kind, o.inputs, tuple(_axis(d, place) for d in o.dims)) for o in walk.operations),
        frozenset(name for name, _ in module.named_parameters()),
    )


def _exits(module: nn.Module) -> tuple[int, ...]:
    return next((part.after for part in module.modules() if isinstance(part, MultiExit)), ())


def _groups(tensors: list[tuple[Dimension, ...]]) -> list[Channels]:
    """Channels that can be cut, in forward order."""
    found: dict[int, Channels] = {}
    for dims in tensors:
        for dim in dims:
            for piece in resolve(dim):
                if not piece.channels.whole and piece.channels.size > 1:
                    found.setdefault(id(piece.channels), piece.channels)
    return sorted(found.values(), key=lambda channels: channels.depth)


def _channel_units(module: nn.Module) -> dict[str, int]:
    """Return the units that modules declare for the channels of layers in them (``channel_units``)."""
    return {
        f"{place}.{layer}" if place else layer: unit
        for place, part in module.named_modules()
        for layer, unit in getattr(part, "channel_units", {}).items()
    }


def _name_groups(groups: list[Channels], units: Mapping[str, int]) -> tuple[Group, ...]:
    named, seen = [], dict[str, int]()
    for channels in groups:
        name = channels.name or "group"
        seen[name] = seen.get(name, 0) + 1
        unit = math.gcd(units.get(name, 1), channels.size)
        named.append(Group(name if seen[name] == 1 else f"{name}#{seen[name]}", channels.size, channels.depth, unit))
    return tuple(named)


def _array(
    tensor: Tensor, dims: tuple[Dimension, ...] | None, place: Mapping[int, int], rows: set[tuple[int, ...]]
) -> ArrayAnatomy:
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dims is None:  # the forward pass does not use it
        return ArrayAnatomy(shape, dtype, tuple((Segment(None, size),) for size in shape))
    output = next((p for p, dim in enumerate(dims) if tuple(id(x.channels) for x in resolve(dim)) in rows), None)
    return ArrayAnatomy(shape, dtype, tuple(_axis(dim, place) for dim in dims), output)


def _axis(dim: Dimension, place: Mapping[int, int]) -> Axis:
    """Segments of the dimension; neighbours that are never cut are merged."""
    segments: list[Segment] = []
    for piece in resolve(dim):
        group = place.get(id(piece.channels))
        if group is None and segments and segments[-1].group is None:
            segments[-1] = Segment(None, segments[-1].inner + piece.length)
        else:
            segments.append(Segment(group, piece.length if group is None else piece.inner))
    return tuple(segments)


def _length_of(dim: Dimension | tuple[Dimension, ...], place: Mapping[int, int]) -> Axis | tuple[Axis, ...]:
    if dim and isinstance(dim[0], tuple):
        return tuple(_axis(one, place) for one in dim)
    return _axis(dim, place)  # type: ignore[arg-type]


def _kept_whole(known: Mapping[str, tuple[Dimension, ...]]) -> dict[str, str]:
    """For each array that has one, the reason why a dimension of more than one entry is not cut."""
    reasons: dict[str, str] = {}
    for name, dims in known.items():
        for dim in dims:
            for piece in resolve(dim):
                if piece.channels.whole and piece.channels.whole not in EXPECTED and piece.channels.size > 1:
                    reasons.setdefault(name, piece.channels.whole)
    return reasons
