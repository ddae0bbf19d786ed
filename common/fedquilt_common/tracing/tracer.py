"""The walk through a traced model: what every rule sees and may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.tracing.channels import NO_CHANNELS, Dimension, dimension, keep_whole, unite, whole

KERNEL = "a kernel"
EXPECTED = frozenset({KERNEL, NO_CHANNELS, "the model's input", "the model's output"})
"""Reasons to stay whole that nobody needs to be told."""


@dataclass(frozen=True)
class Traced:
    """A tensor on its way through the model: its shape (a tensor on the meta device) and its dimensions."""

    tensor: Tensor
    dims: tuple[Dimension, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(frozen=True)
class Operation:
    """One step of the forward pass. ``kind``: its layer's class or its function; ``inputs``: positions of the steps
    whose results it takes; ``dims``: of its (first) result."""

    name: str
    kind: str
    inputs: tuple[int, ...]
    dims: tuple[Dimension, ...]


@dataclass
class Walk:
    """What is known so far: the dimensions of every parameter and buffer, and module attributes that follow them.

    ``attributes``: (module, attribute) -> dimensions whose cut lengths it must have, as one number or a tuple.
    ``rewrites``: (node, path of the argument) -> dimension, for sizes that are written into the model's code.
    """

    module: nn.Module
    where: str = ""
    layers: int = 0
    tensors: dict[int, tuple[str, Tensor, tuple[Dimension, ...]]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Dimension | tuple[Dimension, ...]] = field(default_factory=dict)
    rewrites: dict[tuple[str, tuple[int, ...]], Dimension] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    made_by: dict[int, int] = field(default_factory=dict)
    """id of a ``Traced`` -> the operation that made it."""

    def note(self, kind: str, given: Any, result: Any) -> None:
        """An operation has been understood."""
        made = traced_in(result)
        if made:
            inputs = tuple(self.made_by[id(x)] for x in traced_in(given) if id(x) in self.made_by)
            self.made_by |= {id(x): len(self.operations) for x in made}
            self.operations.append(Operation(self.where, kind, inputs, made[0].dims))

    @property
    def why(self) -> str:
        """For dimensions that must stay whole on account of the present step."""
        return f"'{self.where}' cannot be cut there"

    def next_layer(self) -> None:
        """A layer that makes channels begins."""
        self.layers += 1

    @property
    def depth(self) -> int:
        """The number of the last layer so far."""
        return max(self.layers - 1, 0)

    def of(self, name: str, tensor: Tensor) -> tuple[Dimension, ...]:
        """The dimensions of a parameter or buffer; the same tensor under another name has the same ones (ties)."""
        known = self.tensors.get(id(tensor))
        if known is None:
            label = name.rpartition(".")[0] or name
            dims = tuple(dimension(size, label, self.depth) for size in tensor.shape)
            known = self.tensors[id(tensor)] = (name, tensor, dims)
        return known[2]

    def unite(self, one: Dimension, other: Dimension) -> None:
        """The two dimensions share one index set."""
        unite(one, other, self.why)

    def keep_whole(self, dims: Sequence[Dimension], why: str = "") -> None:
        """Nothing of these dimensions is ever cut."""
        for dim in dims:
            keep_whole(dim, why or self.why)

    def refuse(self, what: str) -> UncuttableModelError:
        """The error for something that is not understood."""
        return UncuttableModelError(
            f"the model cannot be cut: '{self.where}': {what}; use a layer that fedquilt can cut (docs/slicing.md), "
            "or an algorithm that sends whole models"
        )


Rule = Callable[[Walk, Any, tuple[Any, ...], Mapping[str, Any], Any], Any]
"""(walk, what is called, arguments with ``Traced`` tensors, keywords, result on meta) -> result with ``Traced``."""


def plain(value: Any) -> Any:
    """Arguments as torch wants them: tensors in place of ``Traced``."""
    if isinstance(value, Traced):
        return value.tensor
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    return value


def traced_in(value: Any) -> list[Traced]:
    """All tensors among arguments, in their order."""
    if isinstance(value, Traced):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in traced_in(item)]
    if isinstance(value, dict):
        return traced_in(list(value.values()))
    return []


def all_whole(result: Any) -> Any:
    """A result in which nothing is cut."""
    if isinstance(result, Tensor):
        return Traced(result, tuple(whole(size) for size in result.shape))
    if isinstance(result, torch.Size):
        return tuple(result)
    if isinstance(result, list | tuple):
        return tuple(all_whole(item) for item in result)
    return result


def alike(walk: Walk, tensors: Sequence[Traced], result: Tensor) -> Traced:
    """Elementwise: dimensions are aligned from the last one, and those of equal size share one index set."""
    dims: list[Dimension] = []
    for back in range(1, result.dim() + 1):
        size = result.shape[-back]
        found = [t.dims[-back] for t in tensors if len(t.shape) >= back and t.shape[-back] == size]
        for other in found[1:]:
            walk.unite(found[0], other)
        dims.append(found[0] if found else whole(size))
    return Traced(result, tuple(reversed(dims)))
