"""Symbolic tracing of a module's forward pass, with errors that name the place."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.tracing.generators import read_generators, use_seed
from fedquilt_common.tracing.layer_kinds import OURS, layer_kind
from fedquilt_common.tracing.outputs import refuse_exits

DRAWS: Final = "draws random numbers of its own, as with torch.rand(1)"
PLACE: Final = "fedquilt_place"
"""Key of a node's ``meta``: the calls, from the innermost one, that recorded it, as (file, first line of the function,
instruction, line)."""
_FACTORIES: Final = ("arange", "empty", "full", "linspace", "ones", "rand", "randn", "zeros")


Call = tuple[str, int, int, int]


class ModelTracer(fx.Tracer):
    """Symbolic tracing that does not enter our layers with rules of their own, and layers that are torch's but in name.

    torch does not enter its own layers, but for ``Sequential``.

    Args:
        buffers: make symbols of buffers, too, so that what forward computes from them is part of the graph.
    """

    def __init__(self, *, buffers: bool = False) -> None:
        super().__init__()
        self.proxy_buffer_attributes = buffers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        kind = layer_kind(m)
        is_renamed = kind is not type(m) and not issubclass(kind, nn.Sequential)
        return kind.__module__ in OURS or is_renamed or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Make a symbol of the input alone: it is all that training and evaluation give forward."""
        inputs = list(inspect.signature(root_fn).parameters.values())[1:]
        if inputs and inputs[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and all(map(_is_optional, inputs[1:])):
            return root_fn, [self.root, self.create_proxy("placeholder", inputs[0].name, (), {})]
        return super().create_args_for_root(root_fn, is_module, concrete_args)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Note where forward records the node, too."""
        node = super().create_node(*args, **kwargs)
        node.meta[PLACE] = _list_calls()
        return node


def _list_calls() -> tuple[Call, ...]:
    """Return the present calls up to the tracer's, the innermost first."""
    calls, frame = list[Call](), sys._getframe(2)
    while frame is not None and frame.f_code is not fx.Tracer.trace.__code__:
        calls.append((frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(calls)


def _is_optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty or parameter.kind in (
        parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
    )  # fmt: skip


@contextlib.contextmanager
def _traced_factories() -> Iterator[None]:
    """Let functions that make a tensor from sizes accept symbols, which ``torch.fx`` alone does not."""
    originals = {name: getattr(torch, name) for name in _FACTORIES}
    for name, original in originals.items():
        setattr(torch, name, _take_symbols(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _take_symbols(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        symbol = next(_symbols_in([args, kwargs]), None)
        if symbol is None:
            return function(*args, **kwargs)
        return symbol.tracer.create_proxy("call_function", function, args, kwargs)

    return make


def _symbols_in(value: Any) -> Iterator[fx.Proxy]:
    if isinstance(value, fx.Proxy):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _symbols_in(item)


def trace_graph(module: nn.Module) -> fx.Graph:
    """Trace the module's forward pass in its present mode, training or evaluation; ``trace_pass`` has the errors."""
    return trace_pass(module)[0]


@refuse_exits()
def trace_pass(module: nn.Module) -> tuple[fx.Graph, str]:
    """Trace the module's forward pass in its present mode.

    Returns:
        The graph, and what forward does that the graph cannot do in its place; empty if there is nothing. Drawn numbers
        are constants of the graph, and so is what forward decides by them. Every machine draws the same.

    Raises:
        UncuttableModelError: forward cannot be traced.
        ExperimentError: it calls ``sys.exit``.
    """
    try:
        with _traced_factories(), use_seed(0):
            before = read_generators()
            graph, reads = _trace(module)
            draws = read_generators() != before
            return graph, DRAWS if draws else reads or _find_backward_hook(module)
    except UncuttableModelError:
        raise
    except Exception as error:  # a user's forward can raise anything when it is traced
        place, line = _locate_error(module, error)
        raise UncuttableModelError(
            f"the model cannot be cut: '{place}' cannot be traced{line}: {type(error).__name__}: {error}; "
            f"{_advise(module, place)}, or choose an algorithm that sends whole models"
        ) from error


def _find_backward_hook(module: nn.Module) -> str:
    """Return which backward hook the graph misses, that of a block whose layers it calls; empty if there is none."""
    tracer, parts = ModelTracer(), dict(module.named_modules())
    hooked = [name for name, part in parts.items() if part._backward_hooks or part._backward_pre_hooks]
    missed = [name for name in hooked if name and not tracer.is_leaf_module(parts[name], name)]
    return f"runs the backward hook of '{missed[0]}'" if missed else ""


def _trace(module: nn.Module) -> tuple[fx.Graph, str]:
    """Trace forward; with symbols for buffers if it computes tensors from them, whose numbers the graph would keep."""
    if not _has_buffers(module):
        return _trace_with(module, buffers=False), ""
    try:
        plain = _trace_with(module, buffers=False)
    except Exception:  # a user's forward can raise anything when it is traced
        with contextlib.suppress(Exception):
            return _trace_with(module, buffers=True), ""
        raise
    symbolic: fx.Graph | None = None
    with contextlib.suppress(Exception):
        symbolic = _trace_with(module, buffers=True)
    if symbolic is None:
        return plain, "reads or assigns the numbers of a buffer"
    return (symbolic if plain_tensors(module, plain) else plain), ""


def _trace_with(module: nn.Module, *, buffers: bool) -> fx.Graph:
    with _refuse_assigned_buffers(module), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "For backward hooks to be called")  # a symbol of a tensor calls none
        return ModelTracer(buffers=buffers).trace(module)


def _has_buffers(module: nn.Module) -> bool:
    """Whether a module whose forward is traced has buffers: those of torch's layers are not read there."""
    tracer, parts = ModelTracer(), module.named_modules()
    return any(part._buffers for name, part in parts if not name or not tracer.is_leaf_module(part, name))


@contextlib.contextmanager
def _refuse_assigned_buffers(module: nn.Module) -> Iterator[None]:
    """Put back the buffers to which forward assigned a symbol while it was traced, and refuse such a forward.

    Raises:
        UncuttableModelError: forward assigns to a buffer.
    """
    held = [(part, name, buffer) for part in module.modules() for name, buffer in part.named_buffers(recurse=False)]
    try:
        yield
    finally:
        assigned = [(part, name, buffer) for part, name, buffer in held if isinstance(getattr(part, name), fx.Proxy)]
        for part, name, buffer in assigned:
            setattr(part, name, buffer)
    if assigned:
        part, name, _ = assigned[0]
        raise UncuttableModelError(
            f"the model cannot be cut: forward of {type(part).__name__} assigns a new value to the buffer {name!r}; "
            "remove that, or choose an algorithm that sends whole models"
        )


def _advise(module: nn.Module, place: str) -> str:
    """Return what to change at the module ``place``."""
    part = dict(module.named_modules()).get(place, module)
    layer = next(kind for kind in type(part).__mro__ if kind.__module__.startswith("torch."))
    if layer in (nn.Module, nn.Sequential):
        return (
            "forward must not branch on its input, read its numbers, unpack a part of its shape (`*x.shape[2:]`) or "
            "assign to a part of a tensor; rewrite it"
        )
    return f"{type(part).__name__} changes the forward of {layer.__name__}: let it hold that layer as a part"


def _locate_error(module: nn.Module, error: BaseException) -> tuple[str, str]:
    """Name of the innermost module whose forward was running, and the line of its code in brackets."""
    place, line, trace = type(module).__name__, "", error.__traceback__
    known = {type(part): name for name, part in module.named_modules() if name}
    while trace is not None:
        frame = trace.tb_frame
        owner = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if frame.f_code.co_name == "forward" and isinstance(owner, nn.Module):
            place = known.get(type(owner), place)
            line = quote_line(frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return place, line


def quote_line(file: str, number: int) -> str:
    """Return a line of code in brackets, with its place; empty if it cannot be read."""
    code = linecache.getline(file, number).strip()
    return f" (line {number} of {Path(file).name}: `{code}`)" if code else ""


def plain_tensors(module: nn.Module, graph: fx.Graph) -> dict[str, Tensor]:
    """Return the tensors, of any shape, that the graph reads from the module and that are not parameters or buffers.

    ``torch.fx`` makes the tensors that forward creates attributes of the module.
    """
    arrays = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    names = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "get_attr")
    values = {name: operator.attrgetter(name)(module) for name in names}
    return {name: x for name, x in values.items() if isinstance(x, Tensor) and id(x) not in arrays}


def used_arrays(module: nn.Module, nodes: Iterable[fx.Node]) -> set[str]:
    """All names of the parameters and buffers that the nodes use; an array that layers share has several."""
    tensors = module.state_dict(keep_vars=True)
    used = {id(tensors[name]) for name in named_arrays(module, nodes)}
    return {name for name, tensor in tensors.items() if id(tensor) in used}


def named_arrays(module: nn.Module, nodes: Iterable[fx.Node]) -> set[str]:
    """Names by which the nodes use parameters and buffers."""
    nodes = list(nodes)
    layers = tuple(f"{node.target}." for node in nodes if node.op == "call_module")
    used = {str(node.target) for node in nodes if node.op == "get_attr"}
    return {name for name in module.state_dict() if name.startswith(layers) or name in used}
