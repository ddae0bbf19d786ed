"""Heads of a torch module, found by tracing it or its end, and modules of a head alone or of two heads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.heads import TwoHeads
from fedquilt_common.tracing.building import build_on_meta
from fedquilt_common.tracing.head_tracer import find_without_base
from fedquilt_common.tracing.outputs import example_batch
from fedquilt_common.tracing.symbolic import named_arrays, trace_graph, used_arrays


@dataclass(frozen=True)
class FoundHead:
    """The last linear layers of a module, and what follows them.

    Attributes:
        names: of the arrays that the head uses, all of an array that has several.
        first: name of its first linear layer.
        graph: from the features, which that layer takes, to the model's output.
    """

    names: frozenset[str]
    first: str
    graph: fx.Graph


def find_heads(module: nn.Module, sample: Tensor | None = None) -> tuple[FoundHead, ...]:
    """Return the heads of 1, 2, ... last linear layers, in the module's present mode, training or evaluation.

    The list ends where the layers do not form a chain, base and head would share an array, or no base would be left.
    If the base cannot be traced, it also ends where forward creates a tensor: its numbers could be the sample's.

    Args:
        module: the model. One whose numbers are on the meta device must be traceable as a whole.
        sample: a batch of shape (n, *input_shape). If only the model's head can be traced, its base runs on it.

    Raises:
        UncuttableModelError: the model cannot be traced, and there is no sample, or it does not run on it.
    """
    try:
        found = list(_heads_in(module, trace_graph(module)))
    except UncuttableModelError:
        if sample is None:
            raise
        found = find_without_base(module, sample)
    return tuple(_make_head(module, first, graph) for first, graph in found)


def list_heads(build: Callable[[], nn.Module], x: NDArray[Any] | None) -> tuple[tuple[str, ...], ...]:
    """Return the arrays of the heads of 1, 2, ... last linear layers, in the model's order.

    Args:
        build: makes the model.
        x: samples of shape (n, *input_shape); their numbers do not matter. None: only a model that can be traced as a
            whole has heads.

    Raises:
        UncuttableModelError: as ``find_heads``.
    """
    module = build_on_meta(build)
    try:
        heads = find_heads(module)
    except UncuttableModelError:
        if x is None:
            raise
        heads = find_heads(build(), example_batch(x))  # without its numbers, the base could not run
    return tuple(tuple(name for name in module.state_dict() if name in head.names) for head in heads)


def _heads_in(module: nn.Module, graph: fx.Graph) -> Iterator[tuple[str, fx.Graph]]:
    """Yield first layer and graph of the heads, as ``find_without_base`` returns them."""
    nodes = list(graph.nodes)
    for place in reversed(_linear_layers(module, nodes)):
        base, head = used_arrays(module, nodes[:place]), used_arrays(module, nodes[place:])
        if not _is_chain(nodes, place) or base & head or not base:
            return
        yield str(nodes[place].target), _graph_from(nodes, place)


def _make_head(module: nn.Module, first: str, graph: fx.Graph) -> FoundHead:
    """Make a head whose graph names each of its arrays by all names that the model has for it.

    A head that used only one of them would leave its numbers in the base under the others.
    """
    names, called = used_arrays(module, graph.nodes), named_arrays(module, graph.nodes)
    with graph.inserting_before(list(graph.nodes)[-1]):
        for name in sorted(names - called):
            graph.create_node("get_attr", name)  # its value is not used
    return FoundHead(frozenset(names), first, graph)


def _graph_from(nodes: Sequence[fx.Node], place: int) -> fx.Graph:
    alone = fx.Graph()
    copied = {nodes[place].args[0]: alone.placeholder("features")}
    for node in nodes[place:]:
        copied[node] = alone.node_copy(node, copied.__getitem__)
    return alone


def head_module(module: nn.Module, head: FoundHead) -> fx.GraphModule:
    """Make a module of the head; it shares layers and names of arrays with ``module``."""
    return fx.GraphModule(module, head.graph)


class TwoHeaded(nn.Module):
    """The module ``whole`` with a copy of its head beside it."""

    def __init__(self, whole: nn.Module, head: FoundHead, heads: TwoHeads) -> None:
        super().__init__()
        self.whole = whole
        self.second_head = copy.deepcopy(head_module(whole, head))
        self._detached = heads.detached
        self._features = watch_features(whole, head)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of the first and the second head, both in the shape of the model's output."""
        output = self.whole(x)
        features = self._features.pop()
        return [output, self.second_head(features.detach() if self._detached else features)]


def watch_features(module: nn.Module, head: FoundHead) -> list[Tensor]:
    """Return a list to which each forward pass appends the input of the head, of shape (n, features)."""
    features: list[Tensor] = []
    module.get_submodule(head.first).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    return features


def _linear_layers(module: nn.Module, nodes: Sequence[fx.Node]) -> list[int]:
    """Positions of the linear layers among the nodes, in forward order."""
    return [
        place for place, node in enumerate(nodes)
        if node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), nn.Linear)
    ]  # fmt: skip


def _is_chain(nodes: Sequence[fx.Node], place: int) -> bool:
    """Whether the nodes from ``place`` on need only the first one's input of all nodes before."""
    inside = {*nodes[place:], nodes[place].args[0]}
    last = nodes[-1].args[0]
    return isinstance(last, fx.Node) and all(set(node.all_input_nodes) <= inside for node in nodes[place:])
