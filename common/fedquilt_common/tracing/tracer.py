"""The walk through a traced model: what each rule can read and record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.tracing.channels import NO_CHANNELS, Dimension, dimension, keep_whole, resolve, unite, whole

KERNEL = "a kernel"
ONE_GROUP = "the channels of one of many groups"
EXPECTED = frozenset({KERNEL, ONE_GROUP, NO_CHANNELS, "the model's input", "the model's output"})
"""Reasons to stay whole that are not reported: they are part of what a layer is, so nothing can be done about them."""

Path = tuple[int | str, ...]
"""Where an argument of an operation is: its position or name, then positions and names within it."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor on its way through the model.

    Attributes:
        tensor: has the shape and dtype; its numbers do not matter.
        dims: one for each dimension of the shape.
    """

    tensor: Tensor
    dims: tuple[Dimension, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the whole model."""
        return tuple(self.tensor.shape)


class ShapeSize(int):
    """A size that forward takes from a tensor's shape.

    Attributes:
        dim: the dimension that has it.
    """

    dim: Dimension

    @classmethod
    def of(cls, size: int, dim: Dimension) -> ShapeSize:
        """Make the size of a dimension."""
        made = cls(size)
        made.dim = dim
        return made


class ComputedSize(int):
    """A size that forward computes from others, such as the number of all samples' channels."""


@dataclass(frozen=True)
class Operation:
    """One operation of the forward pass.

    Attributes:
        name: of the layer, or of the operation in the graph.
        kind: the layer's class, or the function's name.
        inputs: positions of the operations whose results it takes.
        dims: dimensions of its first result.
        arrays: names of the layer's arrays, or of those that a function takes.
        operands: dimensions of each tensor that it takes.
        batched: whether its result has the samples of the batch; otherwise it is made of parameters alone.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    dims: tuple[Dimension, ...]
    arrays: tuple[str, ...]
    operands: tuple[tuple[Dimension, ...], ...]
    batched: bool


@dataclass
class Walk:
    """State of the walk.

    Attributes:
        module: the model.
        where: name of the present layer or operation.
        owner_name: name of the module whose forward has that operation.
        is_layer: whether the present operation is a layer.
        args: positional arguments of the present operation.
        kwargs: its keyword arguments.
        layers: layers so far that make channels.
        tensors: for each parameter and buffer by id, its name, itself and its dimensions.
        attributes: from (module, attribute) to the dimensions whose cut lengths it must have, as a number or a tuple.
        rewrites: from (node, path of the argument) to the dimensions whose sizes the model's code contains.
        given: for each rewrite, the argument itself.
        followed: rewrites of sizes that are an attribute of the module too, so that its own code has the cut ones.
        operations: of the forward pass so far.
        made_by: from a ``Traced`` to the position of the operation that made it.
        chosen: from a ``Traced`` of numbers of entries, such as the largest ones, to the dimensions that they count,
            and why those stay whole if an operation takes the numbers.
    """

    module: nn.Module
    where: str = ""
    owner_name: str = ""
    is_layer: bool = False
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 0
    tensors: dict[int, tuple[str, Tensor, tuple[Dimension, ...]]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Dimension | tuple[Dimension, ...]] = field(default_factory=dict)
    rewrites: dict[tuple[str, Path], Dimension | tuple[Dimension, ...]] = field(default_factory=dict)
    given: dict[tuple[str, Path], Any] = field(default_factory=dict)
    followed: set[tuple[str, Path]] = field(default_factory=set)
    operations: list[Operation] = field(default_factory=list)
    made_by: dict[Traced, int] = field(default_factory=dict)
    chosen: dict[Traced, tuple[Sequence[Dimension], str]] = field(default_factory=dict)

    def note(self, kind: str, arguments: Any, result: Any) -> None:
        """Record an operation to which a rule has been applied."""
        results, given = traced_in(result), traced_in(arguments)
        if results:
            inputs = tuple(self.made_by[x] for x in given if x in self.made_by)
            self.made_by |= dict.fromkeys(results, len(self.operations))
            arrays = (*self._layer_arrays(), *self._arrays_among(given))
            operands = tuple(x.dims for x in given)
            batched = any(self.operations[place].batched for place in inputs) or not given
            self.operations.append(Operation(self.where, kind, inputs, results[0].dims, arrays, operands, batched))

    def is_constant(self, arguments: Any) -> bool:
        """Whether an operation has tensors among its arguments, and none of them depends on the samples."""
        given = traced_in(arguments)
        return bool(given) and not any(self.operations[self.made_by[x]].batched for x in given if x in self.made_by)

    def _layer_arrays(self) -> list[str]:
        """Names of the arrays of the present layer; none if the operation is a function."""
        return [name for name in self._names if name.startswith(f"{self.where}.")] if self.is_layer else []

    def _arrays_among(self, given: Sequence[Traced]) -> list[str]:
        """Names of the arrays of the state among the arguments; other buffers are none."""
        taken = [self.tensors[id(x.tensor)][0] for x in given if id(x.tensor) in self.tensors and x not in self.made_by]
        return [name for name in taken if name in self._names]

    @cached_property
    def _names(self) -> list[str]:
        return list(self.module.state_dict())

    def rewrite(self, path: Path, dims: Dimension | tuple[Dimension, ...]) -> None:
        """Record an argument of the present operation that must have the cut lengths of these dimensions."""
        key = self.where, path
        self.rewrites[key] = dims
        self.given[key] = _argument_at(self.kwargs if isinstance(path[0], str) else self.args, path)

    @property
    def written(self) -> dict[tuple[str, Path], Dimension | tuple[Dimension, ...]]:
        """The rewrites without those that forward takes from shapes that are cut alike."""
        return {key: dims for key, dims in self.rewrites.items() if not _follows_shape(self.given[key], dims)}

    @property
    def why(self) -> str:
        """Reason for dimensions that must stay whole because of the present operation."""
        return f"'{self.where}' cannot be cut there"

    @property
    def owner(self) -> nn.Module:
        """The module whose forward has the present operation."""
        return self.module.get_submodule(self.owner_name)

    def next_layer(self) -> None:
        """Count a layer that makes channels."""
        self.layers += 1

    @property
    def depth(self) -> int:
        """Number of the last layer so far, from 0."""
        return max(self.layers - 1, 0)

    def of(self, name: str, tensor: Tensor, depth: int | None = None) -> tuple[Dimension, ...]:
        """Dimensions of a parameter or buffer, one for each of its shape; tied tensors have the same ones.

        Args:
            name: of the tensor.
            tensor: itself.
            depth: number of the layer that uses it; None: of the last one so far.
        """
        entry = self.tensors.get(id(tensor))
        if entry is None:
            label = name.rpartition(".")[0] or name
            number = self.depth if depth is None else depth
            dims = tuple(dimension(size, label, number) for size in tensor.shape)
            entry = self.tensors[id(tensor)] = (name, tensor, dims)
        return entry[2]

    def unite(self, one: Dimension, other: Dimension) -> None:
        """Make two dimensions share one index set."""
        unite(one, other, self.why)

    def keep_whole(self, dims: Sequence[Dimension], why: str = "") -> None:
        """Mark dimensions as never cut."""
        for dim in dims:
            keep_whole(dim, why or self.why)

    def keep_masks_whole(self, given: Any, inputs: Sequence[Traced]) -> None:
        """Mark the dimensions of all arguments of an attention but its inputs as never cut."""
        for mask in traced_in(given):
            if mask not in inputs:
                self.keep_whole(mask.dims, f"'{self.where}' takes it as a mask")

    def keep_chosen_whole(self, given: Any) -> None:
        """Mark the dimensions as never cut whose entries the arguments number: a sub-model has other numbers."""
        for numbers in traced_in(given):
            self.keep_whole(*self.chosen.get(numbers, ((), "")))

    def refuse(self, what: str) -> UncuttableModelError:
        """Make the error for an operation that no rule covers."""
        return UncuttableModelError(
            f"the model cannot be cut: '{self.where}': {what}; use a layer that fedquilt can cut (docs/slicing.md), "
            "or an algorithm that sends whole models"
        )


Rule = Callable[[Walk, Any, tuple[Any, ...], Mapping[str, Any], Any], Any]
"""How one operation relates channels.

Arguments: the walk; the layer, function or name of the method; its positional arguments and its keyword arguments, with
``Traced`` in place of tensors; the result as torch computes it. Returns the result with ``Traced`` in place of tensors.
"""


def _argument_at(value: Any, path: Path) -> Any:
    """Return what nested arguments have at the path."""
    for key in path:
        value = getattr(value, str(key)) if isinstance(value, slice) else value[key]
    return value


def _follows_shape(given: Any, dims: Dimension | tuple[Dimension, ...]) -> bool:
    """Whether forward takes the sizes of these dimensions from a shape that is cut as they are."""
    if isinstance(given, ShapeSize):
        return tuple(resolve(given.dim)) == tuple(resolve(dims))  # type: ignore[arg-type]
    return isinstance(given, list | tuple) and all(map(_follows_shape, given, dims))  # type: ignore[arg-type]


def to_tensors(value: Any) -> Any:
    """Convert arguments for torch: tensors in place of ``Traced``."""
    if isinstance(value, Traced):
        return value.tensor
    if isinstance(value, list | tuple):
        return like(value, [to_tensors(item) for item in value])
    if isinstance(value, dict):
        return {key: to_tensors(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(to_tensors(value.start), to_tensors(value.stop), to_tensors(value.step))
    return value


def traced_in(value: Any) -> list[Traced]:
    """All traced tensors among arguments, in their order."""
    if isinstance(value, Traced):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in traced_in(item)]
    if isinstance(value, dict):
        return traced_in(list(value.values()))
    return []


def all_whole(result: Any) -> Any:
    """Convert a result to one in which no dimension is ever cut."""
    if isinstance(result, Tensor):
        return Traced(result, tuple(whole(size) for size in result.shape))
    if isinstance(result, torch.Size):
        return tuple(result)
    if isinstance(result, list | tuple):
        return like(result, [all_whole(item) for item in result])
    return result


def like(example: Any, items: Sequence[Any]) -> Any:
    """Return the items as a list, tuple or named tuple, as the example is one."""
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*items)
    return list(items) if isinstance(example, list) else type(example)(items)


def normalise_over(walk: Walk, x: Traced, dim: int | None) -> Traced:
    """Keep the dimension whole over which a softmax goes: without an entry, all others would change.

    Args:
        walk: the walk.
        x: the input.
        dim: the dimension; None: the one that torch chooses.
    """
    chosen = dim if dim is not None else 0 if len(x.shape) in (0, 1, 3) else 1
    walk.keep_whole([x.dims[chosen]])
    return x


def unite_elementwise(walk: Walk, tensors: Sequence[Traced], result: Tensor) -> Traced:
    """Unite the dimensions that an elementwise operation aligns.

    Shapes are aligned from the last dimension, and aligned dimensions of equal size share one index set.
    """
    dims: list[Dimension] = []
    for back in range(1, result.dim() + 1):
        size = result.shape[-back]
        aligned = [t.dims[-back] for t in tensors if len(t.shape) >= back and t.shape[-back] == size]
        for other in aligned[1:]:
            walk.unite(aligned[0], other)
        dims.append(aligned[0] if aligned else whole(size))
    return Traced(result, tuple(reversed(dims)))
