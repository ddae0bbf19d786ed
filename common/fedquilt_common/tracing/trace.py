"""Find the channel groups of a torch module: symbolic tracing, then one walk over the graph.

The walk runs the model's operations on two empty samples (shape propagation). To each it applies the rule that defines
how the channels of its inputs and outputs belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.models.exits import find_exits
from fedquilt_common.models.static_norm import list_statistics
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Axis, Group, Segment
from fedquilt_common.tracing.building import build_on_meta, find_owner, make_empty
from fedquilt_common.tracing.channels import REST, Channels, Dimension, is_whole, keep_whole, resolve
from fedquilt_common.tracing.graph_walk import check_gradient_hooks, run_graph
from fedquilt_common.tracing.outputs import SAMPLES
from fedquilt_common.tracing.size_decisions import watch_sizes
from fedquilt_common.tracing.symbolic import plain_tensors, trace_pass
from fedquilt_common.tracing.tracer import EXPECTED, Operation, Path, Traced, Walk

BATCH = SAMPLES
"""Samples of the traced batch."""


@dataclass(frozen=True)
class Step:
    """One operation of the forward pass.

    Attributes:
        name: of the layer, or of the operation in the graph.
        kind: the layer's class, or the function's name.
        inputs: positions of the steps whose results it takes.
        axes: dimensions of its result, for a batch of ``BATCH`` samples.
        arrays: names of the layer's arrays, or of those that a function takes.
        operands: dimensions of each tensor that it takes.
        batched: whether its result has the samples of the batch; otherwise it is made of parameters alone.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    axes: tuple[Axis, ...]
    arrays: tuple[str, ...]
    operands: tuple[tuple[Axis, ...], ...]
    batched: bool


@dataclass(frozen=True)
class ForwardPass:
    """A traced forward pass.

    Attributes:
        graph: its operations.
        rewrites: from (node, path of the argument) to the dimensions whose sizes the model's code contains.
        constants: tensors that the graph uses and the model does not store, such as those that forward makes.
    """

    graph: fx.Graph
    rewrites: Mapping[tuple[str, Path], Axis | tuple[Axis, ...]]
    constants: Mapping[str, Tensor]


@dataclass(frozen=True)
class Blueprint:
    """How a model is cut: its channel groups, and everything in the module that depends on them.

    Attributes:
        anatomy: channel groups and arrays.
        attributes: from (module, attribute) to the dimensions whose lengths it must have.
        constants: buffers that are not part of the state dict; every board computes its own.
        passes: the forward pass that a cut module runs, in training (True) and in evaluation (False), because the
            model's own code contains sizes; empty if it does not.
        steps: the operations of the forward pass.
        parameters: names of the arrays that are trained, tied ones once.
    """

    anatomy: Anatomy
    attributes: Mapping[tuple[str, str], Axis | tuple[Axis, ...]]
    constants: Mapping[str, ArrayAnatomy]
    passes: Mapping[bool, ForwardPass]
    steps: tuple[Step, ...]
    parameters: frozenset[str]


def materialise(module: nn.Module) -> None:
    """Allocate memory for tensors on the meta device, in place, with ``make_empty``."""
    fresh: dict[int, Any] = {}
    tensors = {**module.state_dict(keep_vars=True), **dict(module.named_buffers())}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            if id(tensor) not in fresh:
                empty = make_empty(tensor.shape, tensor.dtype)
                fresh[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
            setattr(*find_owner(module, name), fresh[id(tensor)])


def blueprint_of(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Blueprint:
    """Find how a module can be cut.

    Args:
        module: the model.
        input_shape: shape of one sample.
        dtype: of the samples.

    Raises:
        UncuttableModelError: the model has a layer or an operation for which there is no rule.
    """
    own = module.training
    try:
        walks = _walk_modes(module, input_shape, dtype)
    finally:
        module.train(own)
    return _make_blueprint(walks, module)


@dataclass(frozen=True)
class _Mode:
    """The forward pass in one mode, training or evaluation, and what the rules found in it.

    Attributes:
        graph: its operations.
        walk: what the rules found.
        outputs: of the model.
        obstacle: what forward does that its graph would do only once; empty if there is nothing.
        compared: the sizes of layers that forward compares and a sub-model changes, such as ``conv.in_channels``: with
            them, forward could take another way.
    """

    graph: fx.Graph
    walk: Walk
    outputs: list[Traced]
    obstacle: str
    compared: tuple[str, ...]

    @property
    def needs_graph(self) -> bool:
        """Whether a sub-model must run the graph: forward contains sizes, or decides by those of layers."""
        return bool(self.compared) or any(
            _is_cut(dims) for key, dims in self.walk.written.items() if key not in self.walk.followed
        )


def _walk_modes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> dict[bool, _Mode]:
    """Follow the forward pass in training, and in evaluation if that is another one.

    A model that can be traced in evaluation only is followed there, if its training uses no other arrays.
    """
    traced, error = _trace_any_mode(module)
    mode = _follow(module, traced, Walk(module), shape, dtype)
    if error is not None:
        if mode.needs_graph or _unused(module, mode.walk):
            raise error
        return {False: mode}
    unused = _unused(module, mode.walk)
    try:
        evaluated, evaluation = trace_pass(module.eval()), mode
        if _describe_graph(evaluated[0]) != _describe_graph(traced[0]):
            evaluation = _follow(module, evaluated, Walk(module, tensors=mode.walk.tensors), shape, dtype)
    except UncuttableModelError:
        if mode.needs_graph:
            raise
        return {True: _follow(module.train(), traced, Walk(module), shape, dtype)}
    return _check_modes({True: mode, False: evaluation}, unused - _unused(module, evaluation.walk))


def _describe_graph(graph: fx.Graph) -> list[str]:
    return [f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}" for node in graph.nodes]


def _check_modes(modes: dict[bool, _Mode], skipped: set[str]) -> dict[bool, _Mode]:
    """Refuse a model whose sub-models run traced graphs that cannot stand for its code.

    Args:
        modes: the forward passes.
        skipped: parameters that only evaluation uses.
    """
    reasons = [f"training leaves '{name}' out" for name in sorted(skipped)]
    reasons += [f"{'training' if training else 'evaluation'} {mode.obstacle}"
                for training, mode in modes.items() if mode.obstacle]  # fmt: skip
    if reasons and any(mode.needs_graph for mode in modes.values()):
        compared = next((name for mode in modes.values() for name in mode.compared), "")
        why = f"decides by {compared}; decide in __init__" if compared else (
            "contains sizes; take each from a shape, as in x.view(n, x.shape[1]), or write -1 in views")  # fmt: skip
        raise UncuttableModelError(
            f"the model cannot be cut: {reasons[0]}, and forward {why}, or choose an algorithm that sends whole models"
        )
    return modes


def _unused(module: nn.Module, walk: Walk) -> set[str]:
    """Names of the parameters to train that no operation uses."""
    parameters = module.named_parameters()
    return {name for name, p in parameters if p.requires_grad and id(p) not in walk.tensors}


def _trace_any_mode(module: nn.Module) -> tuple[tuple[fx.Graph, str], UncuttableModelError | None]:
    """Trace the forward pass in training, or else in evaluation; the error is why not in training."""
    try:
        return trace_pass(module.train()), None
    except UncuttableModelError as error:
        first = error
    try:
        return trace_pass(module.eval()), first
    except UncuttableModelError:
        raise first from None


def _follow(
    module: nn.Module, traced: tuple[fx.Graph, str], walk: Walk, shape: tuple[int, ...], dtype: torch.dtype
) -> _Mode:
    """Apply the rules to a forward pass that was traced in the module's present mode, and leave it in evaluation."""
    (graph, obstacle), training = traced, module.training
    constants = plain_tensors(module, graph).values()
    before = [tensor._version for tensor in constants]
    with torch.no_grad():
        outputs = run_graph(walk, module.eval(), graph, shape, dtype)
    if not obstacle and [tensor._version for tensor in constants] != before:
        obstacle = "changes a tensor that it creates"
    for out in outputs:
        for dim in out.dims:
            keep_whole(dim, "the model's output")
    return _Mode(graph, walk, outputs, obstacle, _compared_sizes(module.train(training), walk))


def _compared_sizes(module: nn.Module, walk: Walk) -> tuple[str, ...]:
    """Names of the layers' attributes that forward compares and that a sub-model changes."""
    with watch_sizes(module, [key for key, dims in walk.attributes.items() if _is_cut(dims)]) as compared:
        trace_pass(module)
    module.eval()
    return tuple(".".join(key) for key in sorted(compared))


def blueprint_for(build: Callable[[], nn.Module], x: NDArray[Any]) -> Blueprint:
    """Blueprint of the model that ``build`` makes, for samples like those in ``x``, shape (n, *input_shape)."""
    module = build_on_meta(build)
    check_gradient_hooks(module)
    materialise(module)  # on the meta device, torch would import its compiler
    return blueprint_of(module, tuple(x.shape[1:]), torch.float32 if x.dtype.kind == "f" else torch.int64)


def _make_blueprint(modes: Mapping[bool, _Mode], module: nn.Module) -> Blueprint:
    mode = next(iter(modes.values()))
    walk, outputs = mode.walk, [out for each in modes.values() for out in each.outputs]
    rows = {tuple(id(p.channels) for p in resolve(out.dims[-1])) for out in outputs}
    state = dict(module.state_dict(keep_vars=True))
    known = {name: walk.tensors[id(t)][2] for name, t in state.items() if id(t) in walk.tensors}
    others = {name: b for name, b in module.named_buffers() if name not in state and id(b) in walk.tensors}
    groups = _groups([*known.values(), *(walk.tensors[id(b)][2] for b in others.values())])
    place = {id(channels): position for position, channels in enumerate(groups)}
    arrays = {name: _array(tensor, known.get(name), place, rows) for name, tensor in state.items()}
    attributes = {key: dims for each in modes.values() for key, dims in each.walk.attributes.items()}
    anatomy = Anatomy(
        _name_groups(groups, _channel_units(module)), arrays, _kept_whole(state, known, arrays),
        list_statistics(module), *find_exits(module), tuple(getattr(module, "start_layers", ())),
    )  # fmt: skip
    return Blueprint(
        anatomy,
        {key: _length_of(dim, place) for key, dim in attributes.items()},
        {name: _array(b, walk.tensors[id(b)][2], place, set()) for name, b in others.items()},
        _forward_passes(modes, module, place),
        tuple(_step(operation, place) for operation in _pick_operations(modes)),
        frozenset(name for name, _ in module.named_parameters()),
    )


def _step(operation: Operation, place: Mapping[int, int]) -> Step:
    made, *taken = (tuple(_axis(dim, place) for dim in dims) for dims in (operation.dims, *operation.operands))
    return Step(
        operation.name, operation.kind, operation.inputs, made, operation.arrays, tuple(taken), operation.batched
    )


def _pick_operations(modes: Mapping[bool, _Mode]) -> list[Operation]:
    """Operations of the forward pass that uses the most arrays: training, unless it leaves layers out."""
    return max(
        (mode.walk.operations for mode in modes.values()),
        key=lambda operations: len({name for operation in operations for name in operation.arrays}),
    )


def _forward_passes(
    modes: Mapping[bool, _Mode], module: nn.Module, place: Mapping[int, int]
) -> dict[bool, ForwardPass]:
    """Return the passes that a cut module runs; none if it can run the model's own code."""
    if not any(mode.needs_graph for mode in modes.values()):
        return {}
    return {training: _forward_pass(mode, module, place) for training, mode in modes.items()}


def _forward_pass(mode: _Mode, module: nn.Module, place: Mapping[int, int]) -> ForwardPass:
    cut = {key: dims for key, dims in mode.walk.written.items() if _is_cut(dims)}
    sizes = {key: _length_of(dims, place) for key, dims in cut.items()}
    return ForwardPass(mode.graph, sizes, plain_tensors(module, mode.graph))


def _is_cut(dims: Dimension | tuple[Dimension, ...]) -> bool:
    """Whether a sub-model may have fewer entries of the dimension, or of one of several."""
    return dims is REST or not is_whole(
        tuple(piece for dim in dims for piece in (dim if isinstance(dim, tuple) else (dim,)))
    )


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


_ONE: Final = "its channels only go together, as where groups of a convolution are shuffled"
"""Why a dimension is not cut whose channels have become one."""


def _kept_whole(
    state: Mapping[str, Tensor], known: Mapping[str, tuple[Dimension, ...]], arrays: Mapping[str, ArrayAnatomy]
) -> dict[str, str]:
    """For each array that has one, the reason why a dimension of more than one entry is not cut.

    The model's outputs, which are never cut, have none, whatever follows them.
    """
    reasons: dict[str, str] = {}
    for name, tensor in state.items():
        if name not in known and tensor.numel() > 1:
            reasons[name] = "the forward pass does not use it"
        dims = (dim for place, dim in enumerate(known.get(name, ())) if place != arrays[name].outputs)
        for piece in resolve(piece for dim in dims for piece in dim):
            reason = piece.channels.whole or (_ONE if piece.channels.size == 1 else "")
            if reason and reason not in EXPECTED and piece.length > 1:
                reasons.setdefault(name, reason)
    return reasons
