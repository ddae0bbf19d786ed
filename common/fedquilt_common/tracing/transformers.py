"""Rules for blocks of ``torch.nn`` that are made of several layers: each of these is followed by its own rule.

``tracer.Rule`` documents the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def run(self, part: str, *inputs: Traced, **options: Any) -> Traced:
        """Apply the rule of one of its layers, and record it; of an attention, return what it attends to."""
        layer = self.module.get_submodule(part)
        self.walk.where = f"{self.name}.{part}"
        result = LAYERS[layer_kind(layer)](self.walk, layer, inputs, options, layer(*to_tensors(inputs), **options))
        self.walk.note(layer_kind(layer).__name__, inputs, result)
        first: Traced = result[0] if isinstance(result, tuple) else result
        return first

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
    return _encode(_Block(walk, walk.where, module), *_take_inputs(walk, args, kwargs, "src"))


def decoder_layer(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.TransformerDecoderLayer``: the shape stays as in an encoder's; it attends to a memory of that embedding."""
    return _decode(_Block(walk, walk.where, module), *_take_inputs(walk, args, kwargs, "tgt", "memory"))


def encoder(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.TransformerEncoder``: shape (n, length, embedding) stays; its layers one after another, and its norm."""
    return _stack(walk, module, nn.TransformerEncoderLayer, _encode, *_take_inputs(walk, args, kwargs, "src"))


def decoder(walk: Walk, module: Any, args: Any, kwargs: Mapping[str, Any], result: Tensor) -> Traced:
    """``nn.TransformerDecoder``: the shape stays, as in an encoder; all its layers attend to one memory."""
    inputs = _take_inputs(walk, args, kwargs, "tgt", "memory")
    return _stack(walk, module, nn.TransformerDecoderLayer, _decode, *inputs)


def _take_inputs(walk: Walk, args: Any, kwargs: Mapping[str, Any], *names: str) -> tuple[Traced, ...]:
    """Return the inputs of these names, which are the first parameters; all other arguments are masks."""
    inputs = tuple(args[place] if place < len(args) else kwargs[name] for place, name in enumerate(names))
    walk.keep_masks_whole([args, dict(kwargs)], inputs)
    return inputs


def _stack(
    walk: Walk, module: Any, kind: type[nn.Module], follow: Callable[..., Traced], x: Traced, *memory: Traced
) -> Traced:
    """Follow layers of one kind one after another, and the norm behind them."""
    name = walk.where
    for number, layer in enumerate(module.layers):
        if layer_kind(layer) is not kind:
            raise walk.refuse(f"a {type(module).__name__} of {type(layer).__name__}")
        x = follow(_Block(walk, f"{name}.layers.{number}", layer), x, *memory)
    return x if module.norm is None else _Block(walk, name, module).run("norm", x)


def _encode(block: _Block, x: Traced) -> Traced:
    x = _add(block, "norm1", x, lambda one: _attend(block, "self_attn", "dropout1", one, one))
    return _add(block, "norm2", x, lambda one: _feed(block, one, "dropout2"))


def _decode(block: _Block, x: Traced, memory: Traced) -> Traced:
    x = _add(block, "norm1", x, lambda one: _attend(block, "self_attn", "dropout1", one, one))
    x = _add(block, "norm2", x, lambda one: _attend(block, "multihead_attn", "dropout2", one, memory))
    return _add(block, "norm3", x, lambda one: _feed(block, one, "dropout3"))


def _add(block: _Block, norm: str, x: Traced, change: Callable[[Traced], Traced]) -> Traced:
    """Follow a residual connection with its norm, which is before the change or behind the sum."""
    if getattr(block.module, "norm_first", False):
        return block.add(x, change(block.run(norm, x)))
    return block.run(norm, block.add(x, change(x)))


def _attend(block: _Block, part: str, dropout: str, x: Traced, memory: Traced) -> Traced:
    return block.run(dropout, block.run(part, x, memory, memory, need_weights=False))


def _feed(block: _Block, x: Traced, dropout: str) -> Traced:
    hidden = block.run("linear1", x)
    active = block.apply("relu", hidden.tensor, hidden)
    return block.run(dropout, block.run("linear2", block.run("dropout", active)))


BLOCKS: dict[type[nn.Module], Rule] = {
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.TransformerDecoder: decoder,
}
