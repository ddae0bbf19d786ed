"""Heads of a module, found in its traced graph: where the last linear layers begin, and a second head beside them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, fx, nn

from fedquilt_common.submodels.heads import TwoHeads


def heads_of(module: nn.Module, graph: fx.Graph) -> tuple[frozenset[str], ...]:
    """For 1, 2, ... last linear layers the arrays that they and what follows them use.

    It ends where the layers are no chain, where base and head would share an array, or no base would be left.
    """
    nodes, tensors = list(graph.nodes), module.state_dict(keep_vars=True)
    found: list[frozenset[str]] = []
    for place in reversed(_linear_layers(module, nodes)):
        base, head = _arrays(module, nodes[:place]), _arrays(module, nodes[place:])
        tied = {id(tensors[name]) for name in base} & {id(tensors[name]) for name in head}
        if not _is_chain(nodes, place) or tied or not base:
            break
        found.append(frozenset(head))
    return tuple(found)


def head_module(module: nn.Module, graph: fx.Graph, layers: int) -> fx.GraphModule:
    """The head as a module that shares its layers with ``module``; names of arrays are the same."""
    nodes = list(graph.nodes)
    place = _linear_layers(module, nodes)[-layers]
    alone = fx.Graph()
    copied = {nodes[place].args[0]: alone.placeholder("features")}
    for node in nodes[place:]:
        copied[node] = alone.node_copy(node, copied.__getitem__)
    return fx.GraphModule(module, alone)


class TwoHeaded(nn.Module):
    """``whole`` with a copy of its head beside it: gives [first head's output, second head's] for each batch."""

    def __init__(self, whole: nn.Module, graph: fx.Graph, heads: TwoHeads) -> None:
        super().__init__()
        self.whole = whole
        self.second_head = copy.deepcopy(head_module(whole, graph, heads.layers))
        self._detached = heads.detached
        self._features = watch_features(whole, graph, heads.layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        output = self.whole(x)
        features = self._features.pop()
        return [output, self.second_head(features.detach() if self._detached else features)]


def watch_features(module: nn.Module, graph: fx.Graph, layers: int) -> list[Tensor]:
    """A list to which each forward pass adds what goes into the head."""
    nodes = list(graph.nodes)
    first = nodes[_linear_layers(module, nodes)[-layers]]
    seen: list[Tensor] = []
    module.get_submodule(str(first.target)).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    return seen


def _linear_layers(module: nn.Module, nodes: Sequence[fx.Node]) -> list[int]:
    """Places of the linear layers, in forward order."""
    return [
        place for place, node in enumerate(nodes)
        if node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), nn.Linear)
    ]  # fmt: skip


def _is_chain(nodes: Sequence[fx.Node], place: int) -> bool:
    """Whether all from ``place`` on needs nothing of what comes before but the input of the layer there."""
    inside = {*nodes[place:], nodes[place].args[0]}
    last = nodes[-1].args[0]
    return isinstance(last, fx.Node) and all(set(node.all_input_nodes) <= inside for node in nodes[place:])


def _arrays(module: nn.Module, nodes: Sequence[fx.Node]) -> set[str]:
    """Parameters and buffers that the nodes use."""
    state = module.state_dict()
    layers = tuple(f"{node.target}." for node in nodes if node.op == "call_module")
    used = {str(node.target) for node in nodes if node.op == "get_attr"}
    return {name for name in state if name.startswith(layers) or name in used} if layers or used else set()
