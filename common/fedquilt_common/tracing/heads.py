"""Heads of a torch module, found in its traced graph, and modules of a head alone or of two heads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, fx, nn

from fedquilt_common.submodels.heads import TwoHeads


def heads_of(module: nn.Module, graph: fx.Graph) -> tuple[frozenset[str], ...]:
    """For 1, 2, ... last linear layers, the names of the arrays that these and everything after them use.

    The list ends where the layers are no chain, base and head would share an array, or no base would be left.
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
    """Make a module of the last ``layers`` linear layers; it shares layers and names of arrays with ``module``."""
    nodes = list(graph.nodes)
    place = _linear_layers(module, nodes)[-layers]
    alone = fx.Graph()
    copied = {nodes[place].args[0]: alone.placeholder("features")}
    for node in nodes[place:]:
        copied[node] = alone.node_copy(node, copied.__getitem__)
    return fx.GraphModule(module, alone)


class TwoHeaded(nn.Module):
    """The module ``whole`` with a copy of its head beside it."""

    def __init__(self, whole: nn.Module, graph: fx.Graph, heads: TwoHeads) -> None:
        super().__init__()
        self.whole = whole
        self.second_head = copy.deepcopy(head_module(whole, graph, heads.layers))
        self._detached = heads.detached
        self._features = watch_features(whole, graph, heads.layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of the first and the second head, both in the shape of the model's output."""
        output = self.whole(x)
        features = self._features.pop()
        return [output, self.second_head(features.detach() if self._detached else features)]


def watch_features(module: nn.Module, graph: fx.Graph, layers: int) -> list[Tensor]:
    """Return a list to which each forward pass appends the input of the head, of shape (n, features)."""
    nodes = list(graph.nodes)
    first = nodes[_linear_layers(module, nodes)[-layers]]
    features: list[Tensor] = []
    module.get_submodule(str(first.target)).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
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


def _arrays(module: nn.Module, nodes: Sequence[fx.Node]) -> set[str]:
    """Names of the parameters and buffers that the nodes use."""
    state = module.state_dict()
    layers = tuple(f"{node.target}." for node in nodes if node.op == "call_module")
    used = {str(node.target) for node in nodes if node.op == "get_attr"}
    return {name for name in state if name.startswith(layers) or name in used} if layers or used else set()
