"""Rules for blocks of ``torch.nn`` that are made of several layers: each of these is followed by its own rule.

``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedquilt_common.tracing.layer_kinds import layer_kind
from fedquilt_common.tracing.layers import LAYERS
from fedquilt_common.tracing.tracer import Rule, Traced, Walk, to_tensors, unite_elementwise


@dataclass(frozen=True)
class _Block:
    """A block on the walk, by whose parts its forward pass is followed."""

    walk: Walk
    name: str
    module: nn.Module

    def run(self, part: str, *inputs: Traced, **options: Any) -> Any:
        """Apply the rule of one of its layers, and record it."""
        layer = self.module.get_submodule(part)
        self.walk.where = f"{self.name}.{part}"
        result = LAYERS[layer_kind(layer)](self.walk, layer, inputs, options, layer(*to_tensors(inputs), **options))
        self.walk.note(layer_kind(layer).__name__, inputs, result)
        return result

    def apply(self, name: str, result: Tensor, *inputs: Traced) -> Traced:
        """Record an elementwise operation between its layers."""
        self.walk.where = f"{self.name}:{name}"
        found = unite_elementwise(self.walk, inputs, result)
        self.walk.note(name, inputs, found)
        return found

    def add(self, one: Traced, other: Traced) -> Traced:
        """Record a residual connection."""
        return self.apply("add", one.tensor + other.tensor, one, other)


def encoder_layer(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.TransformerEncoderLayer``: shape (n, length, embedding) stays; embedding, heads and hidden layer are cut."""
    return _encode(_Block(walk, walk.where, module), _take_source(walk, args, kwargs))


def _take_source(walk: Walk, args: Any, kwargs: Mapping[str, Any]) -> Traced:
    """Return the input; all other arguments are masks."""
    source: Traced = args[0] if args else kwargs["src"]
    walk.keep_masks_whole([args, dict(kwargs)], (source,))
    return source


def _encode(block: _Block, x: Traced) -> Traced:
    module: Any = block.module
    if module.norm_first:
        x = block.add(x, _attend(block, block.run("norm1", x)))
        return block.add(x, _feed(block, block.run("norm2", x)))
    x = block.run("norm1", block.add(x, _attend(block, x)))
    found: Traced = block.run("norm2", block.add(x, _feed(block, x)))
    return found


def _attend(block: _Block, x: Traced) -> Traced:
    attended, _ = block.run("self_attn", x, x, x, need_weights=False)
    found: Traced = block.run("dropout1", attended)
    return found


def _feed(block: _Block, x: Traced) -> Traced:
    hidden = block.run("linear1", x)
    active = block.apply("relu", hidden.tensor, hidden)
    found: Traced = block.run("dropout2", block.run("linear2", block.run("dropout", active)))
    return found


def encoder(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.TransformerEncoder``: shape (n, length, embedding) stays; its layers one after another, and its norm."""
    x, name = _take_source(walk, args, kwargs), walk.where
    for number, layer in enumerate(module.layers):
        if layer_kind(layer) is not nn.TransformerEncoderLayer:
            raise walk.refuse(f"a TransformerEncoder of {type(layer).__name__}")
        x = _encode(_Block(walk, f"{name}.layers.{number}", layer), x)
    if module.norm is not None:
        normed: Traced = _Block(walk, name, module).run("norm", x)
        return normed
    return x


BLOCKS: dict[type[nn.Module], Rule] = {
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
}
