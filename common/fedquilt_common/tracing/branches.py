"""Find sub-models whose own code takes another branch than the whole model's, because of a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.slices import Slice, full_slice
from fedquilt_common.tracing.building import make_empty
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.symbolic import DRAWS, PLACE, quote_line, trace_pass
from fedquilt_common.tracing.trace import Blueprint

_TRIES: Final = 5
"""Traces of the whole model that must agree: it may decide by state outside the module, such as a generator."""
_CONSTANT: Final = "_tensor_constant"
"""``torch.fx`` gives tensors that forward makes this name and a number."""
_OTHERS: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders of code that is not the model's."""


def check_branches(build: Callable[[], nn.Module], blueprint: Blueprint, part: Slice) -> None:
    """Trace the code of the whole model and of a sub-model, in training and in evaluation, and compare their steps.

    Numbers among the arguments may differ. A loop may take fewer turns in the sub-model, but at least one. Nothing is
    compared if sub-models run traced graphs, or in a mode in which forward cannot be traced or draws random numbers.

    Args:
        build: makes the model.
        blueprint: how it is cut.
        part: the sub-model.

    Raises:
        UncuttableModelError: a step differs, as where ``forward`` decides by ``int(self.conv.out_channels)``.
    """
    if blueprint.passes:
        return
    reference = Slice(part.anatomy, full_slice(part.anatomy).kept, part.absent)  # with the exits of the part
    for training in (True, False):
        whole, small = (partial(_trace, build, blueprint, one, training) for one in (reference, part))
        try:
            expected = whole()
        except UncuttableModelError:
            continue
        found = small()
        difference = "" if expected is None or found is None else _find_difference(expected, found)
        if difference and not any(_find_difference(expected or [], whole() or []) for _ in range(_TRIES)):
            raise UncuttableModelError(_explain(part, difference))


def _trace(build: Callable[[], nn.Module], blueprint: Blueprint, part: Slice, training: bool) -> list[fx.Node] | None:
    """Return the steps of a sub-model; None if it draws random numbers, by which it may decide."""
    graph, obstacle = trace_pass(cut_module(build, blueprint, part, make_empty).train(training))
    return None if obstacle == DRAWS else list(graph.nodes)


def _explain(part: Slice, difference: str) -> str:
    kept, size = (sum(getattr(group, field) for group in part.kept) for field in ("count", "size"))
    return (
        f"the model cannot be cut: its sub-model with {kept} of {size} channels {difference}, because forward decides "
        "by a size that a sub-model changes; decide in __init__, compare the size itself, as in "
        "self.conv.out_channels > 8, or choose an algorithm that sends whole models"
    )


def _find_difference(whole: Sequence[fx.Node], small: Sequence[fx.Node]) -> str:
    """Return what a sub-model does otherwise than the whole model; empty if there is nothing but turns of loops."""
    if len(whole) == len(small):
        pairs = zip(whole, small, _describe(whole), _describe(small), strict=True)
        pair = next(((one, other) for one, other, *described in pairs if described[0] != described[1]), None)
        return f"runs {_describe_node(pair[1])} where the whole model runs {_describe_node(pair[0])}" if pair else ""
    steps, places = set(map(_read_step, whole)), set(map(_read_place, small))
    added = next((node for node in small if _read_step(node) not in steps), None)
    if added is not None:
        return f"runs {_describe_node(added)}, which the whole model does not run there"
    missing = next((node for node in whole if _read_place(node) not in places), None)
    return f"leaves out {_describe_node(missing)}, which the whole model runs" if missing is not None else ""


def _describe(nodes: Sequence[fx.Node]) -> list[tuple[Any, ...]]:
    """Return each step with its arguments, but without their numbers."""
    names = {node: f"%{number}" for number, node in enumerate(nodes)}

    def describe(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return names[value]
        return "number" if isinstance(value, int | float) and not isinstance(value, bool) else value

    return [
        (node.op, _read_target(node), str(fx.node.map_aggregate((node.args, node.kwargs), describe))) for node in nodes
    ]


def _read_target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return _CONSTANT if node.target.startswith(_CONSTANT) else node.target
    return str(getattr(node.target, "__name__", node.target))


def _read_place(node: fx.Node) -> Any:
    return node.meta[PLACE]


def _read_step(node: fx.Node) -> Any:
    return node.op, _read_target(node), _read_place(node)


def _describe_node(node: fx.Node) -> str:
    """Name the layer or operation, and the line of the model's code that runs it."""
    own = next((call for call in _read_place(node) if not call[0].startswith(_OTHERS)), None)
    name = node.target if node.op in ("call_module", "get_attr") else node.name
    return f"'{name}'{quote_line(own[0], own[3]) if own else ''}"
