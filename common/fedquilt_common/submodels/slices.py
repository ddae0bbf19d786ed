"""Slices: which channels of a model a sub-model keeps, and the model's arrays cut to it.

A model's arrays are cut along *channel groups*: the dimensions that must share one index set (docs/slicing.md).
``tracing.trace`` finds them. This module does not need torch.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.selectors import Indices, Selector, as_slice, positions, take
from fedquilt_common.types import Arrays, Shapes

_MOST_RUNS_AS_LIST: Final = 8


@dataclass(frozen=True)
class IndexSet:
    """Distinct channels out of ``range(size)``, in the order in which the sub-model has them.

    Attributes:
        size: channels of the whole group.
        runs: the channels as runs (start, stop), stop excluded.

    Raises:
        SliceError: there is no channel, one is out of range, or one appears twice.
    """

    size: int
    runs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        end = 0
        if not self.runs:
            raise SliceError(f"a sub-model keeps none of {self.size} channels; it must keep at least one")
        for start, stop in sorted(self.runs):
            if start < 0 or stop > self.size or start >= stop:
                raise SliceError(f"channels {start} to {stop - 1} are out of range: there are {self.size}")
            if start < end:
                raise SliceError(f"channel {start} appears twice in an index set; each may appear once")
            end = stop

    @classmethod
    def full(cls, size: int) -> IndexSet:
        """All channels."""
        return cls(size, ((0, size),))

    @classmethod
    def prefix(cls, size: int, count: int) -> IndexSet:
        """The first ``count`` channels (HeteroFL)."""
        return cls(size, ((0, count),) if count else ())

    @classmethod
    def window(cls, size: int, start: int, count: int) -> IndexSet:
        """``count`` channels from ``start`` on; after the last channel the window continues at the first.

        FedRolex, equation 3.4.

        Raises:
            SliceError: ``start`` is out of range, or ``count`` exceeds ``size``.
        """
        stop = start + count
        if not 0 <= start < size or count > size:
            raise SliceError(f"a window of {count} channels from {start} on does not fit into {size}")
        return cls(size, ((start, stop),) if stop <= size else ((start, size), (0, stop - size)))

    @classmethod
    def of(cls, size: int, indices: Iterable[int]) -> IndexSet:
        """The channels listed in ``indices``, in that order."""
        runs: list[tuple[int, int]] = []
        for index in map(int, indices):
            if runs and runs[-1][1] == index:
                runs[-1] = (runs[-1][0], index + 1)
            else:
                runs.append((index, index + 1))
        return cls(size, tuple(runs))

    @cached_property
    def count(self) -> int:
        """How many channels are kept."""
        return sum(stop - start for start, stop in self.runs)

    @cached_property
    def indices(self) -> Indices:
        """The kept channels, int64 of shape (count,)."""
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in self.runs])

    @property
    def is_full(self) -> bool:
        """Whether it has all channels in their own order."""
        return self.runs == ((0, self.size),)

    def is_within(self, other: IndexSet) -> bool:
        """Whether every channel is also in ``other``."""
        return self.size == other.size and bool(np.isin(self.indices, other.indices).all())

    def encode(self) -> list[int] | str:
        """Encode for a message: run bounds as a flat list, or a base64 bitmap for an ascending set of many runs."""
        ascending = all(a[1] <= b[0] for a, b in zip(self.runs, self.runs[1:], strict=False))
        if len(self.runs) <= _MOST_RUNS_AS_LIST or not ascending:
            return [bound for run in self.runs for bound in run]
        bits = np.zeros(self.size, np.uint8)
        bits[self.indices] = 1
        return b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()

    @classmethod
    def decode(cls, size: int, text: Sequence[int] | str) -> IndexSet:
        """Decode what ``encode`` returned.

        Raises:
            SliceError: the text is not an index set of ``size`` channels.
        """
        if isinstance(text, str):
            return cls.of(size, np.flatnonzero(_unpack_bits(size, text)))
        if len(text) % 2:
            raise SliceError(f"an index set has {len(text)} run bounds: one start is without an end")
        return cls(size, tuple(zip(text[::2], text[1::2], strict=True)))


def _unpack_bits(size: int, text: str) -> NDArray[np.uint8]:
    try:
        packed = np.frombuffer(b64decode(text, validate=True), np.uint8)
    except ValueError:
        raise SliceError("an index set is not base64") from None
    if len(packed) != (size + 7) // 8:
        raise SliceError(f"an index set has {len(packed)} bytes; {size} channels take {(size + 7) // 8}")
    bits = np.unpackbits(packed, bitorder="little")
    if bits[size:].any():
        raise SliceError(f"an index set has channels out of range: there are {size}")
    return bits


@dataclass(frozen=True)
class Group:
    """A channel group.

    Attributes:
        name: unique in its model; the layer that makes the channels.
        size: number of channels.
        depth: 0-based number, in forward order, of the first layer that makes its channels.
        unit: sub-models keep a multiple of this many channels; it divides ``size``.
    """

    name: str
    size: int
    depth: int
    unit: int = 1


@dataclass(frozen=True)
class Segment:
    """A stretch of a dimension.

    Attributes:
        group: position of the channel group in the anatomy's list; None for entries that are never cut.
        inner: consecutive entries for each channel; without a group, the entries in all.
    """

    group: int | None
    inner: int


Axis = tuple[Segment, ...]
"""A dimension of an array."""


@dataclass(frozen=True)
class ArrayAnatomy:
    """One parameter or buffer.

    Attributes:
        shape: in the whole model.
        dtype: its name, such as float32.
        axes: the segments of each dimension.
        outputs: the dimension over the model's outputs, such as the rows of a classifier; None if there is none.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Axis, ...]
    outputs: int | None = None


@dataclass(frozen=True)
class Anatomy:
    """The channel groups of a model, and how they appear in its arrays.

    Attributes:
        groups: in forward order.
        arrays: parameters and buffers by name.
        kept_whole: why some arrays are not cut, by name.
        statistics: names of the means and variances of static batch norms.
        exits_after: for each exit of a model with several, the stage that it follows.
        exits_in: names of the module that has the stages and the exits, "" for the model itself.
        start_layers: where the sub-models of AdaptiveFL's pool begin to be cut if the experiment does not set
            it: layers by number or by name. Empty: the model has no published ones.
    """

    groups: tuple[Group, ...]
    arrays: Mapping[str, ArrayAnatomy]
    kept_whole: Mapping[str, str] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    exits_after: tuple[int, ...] = ()
    exits_in: tuple[str, ...] = ()
    start_layers: tuple[int | str, ...] = ()

    @property
    def entries(self) -> int:
        """How many numbers the whole model has, buffers included."""
        return sum(math.prod(array.shape) for array in self.arrays.values())


@dataclass(frozen=True)
class Slice:
    """A sub-model.

    Attributes:
        anatomy: of the whole model.
        kept: the index set of each channel group, in the anatomy's order.
        absent: names of arrays that the sub-model does not have.

    Raises:
        SliceError: the index sets do not fit the anatomy's groups, or it has no array of a name in ``absent``.
    """

    anatomy: Anatomy = field(repr=False, compare=False)
    kept: tuple[IndexSet, ...]
    absent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        sizes = [group.size for group in self.anatomy.groups]
        if [k.size for k in self.kept] != sizes:
            raise SliceError(
                f"a sub-model has index sets for groups of {[k.size for k in self.kept]} channels; "
                f"the model's are {sizes}"
            )
        foreign = sorted(self.absent - self.anatomy.arrays.keys())
        if foreign:
            raise SliceError(f"a sub-model leaves out {foreign[:3]}, which the model does not have")

    @cached_property
    def selectors(self) -> Mapping[str, tuple[Selector, ...]]:
        """The kept indices by array and dimension, counted in the whole model; a slice if they are consecutive."""
        select = cache(self.select)  # most arrays share their dimensions with others
        return {name: tuple(map(select, array.axes)) for name, array in self._present}

    @property
    def _present(self) -> Iterator[tuple[str, ArrayAnatomy]]:
        """The arrays that the sub-model has, as they are in the whole model, by name."""
        return ((name, array) for name, array in self.anatomy.arrays.items() if name not in self.absent)

    def select(self, axis: Axis) -> Selector:
        """The kept indices of one dimension: a slice, or int64 of shape (kept entries,)."""
        parts, offset = [], 0
        for segment in axis:
            kept = None if segment.group is None else self.kept[segment.group]
            parts.append(offset + _expand(kept, segment.inner))
            offset += segment.inner * (1 if kept is None else kept.size)
        return as_slice(np.concatenate(parts))

    def length(self, axis: Axis) -> int:
        """How many entries of a dimension are kept."""
        return sum(s.inner if s.group is None else s.inner * self.kept[s.group].count for s in axis)

    def whole_length(self, axis: Axis) -> int:
        """How many entries a dimension has in the whole model."""
        return sum(s.inner if s.group is None else s.inner * self.kept[s.group].size for s in axis)

    @cached_property
    def shapes(self) -> Shapes:
        """Shape of each array of the sub-model, by name."""
        return {name: tuple(map(self.length, array.axes)) for name, array in self._present}

    @cached_property
    def entries(self) -> int:
        """How many numbers the sub-model has, buffers included."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def counts(self) -> dict[str, int]:
        """Number of kept channels by the name of their group."""
        return {group.name: kept.count for group, kept in zip(self.anatomy.groups, self.kept, strict=True)}

    @property
    def is_full(self) -> bool:
        """Whether it is the whole model."""
        return not self.absent and all(kept.is_full for kept in self.kept)

    def is_within(self, other: Slice) -> bool:
        """Whether every entry of this sub-model is also in ``other``: whether it is nested in it."""
        return self.absent >= other.absent and all(a.is_within(b) for a, b in zip(self.kept, other.kept, strict=True))


def full_slice(anatomy: Anatomy) -> Slice:
    """The whole model as a slice."""
    return Slice(anatomy, tuple(IndexSet.full(group.size) for group in anatomy.groups))


def cut(arrays: Arrays, part: Slice) -> Arrays:
    """Cut a model's arrays to a sub-model.

    Args:
        arrays: of the whole model, in its shapes.
        part: the sub-model.

    Returns:
        Arrays in the shapes of ``part``, with their own dtypes. Each is cut when it is accessed, so that none is in
        memory twice; it is a view if the kept entries are consecutive, else a copy.
    """
    return _CutArrays(arrays, part.selectors)


@dataclass(frozen=True)
class _CutArrays(Mapping[str, NDArray[Any]]):
    arrays: Arrays
    selectors: Mapping[str, tuple[Selector, ...]]

    def __len__(self) -> int:
        return len(self.selectors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.selectors)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return take(np.asarray(self.arrays[name]), self.selectors[name])


def relative_slice(inner: Slice, outer: Slice) -> Slice:
    """Express ``inner`` as a slice of the sub-model ``outer``, so that a received sub-model can be cut further.

    Returns:
        A slice whose anatomy is that of ``outer``.

    Raises:
        SliceError: ``inner`` is not nested in ``outer``.
    """
    if not inner.is_within(outer):
        raise SliceError("the sub-model is not nested in the sub-model that it must be cut from")
    kept = [IndexSet.of(b.count, positions(b.indices, b.size)[a.indices])
            for a, b in zip(inner.kept, outer.kept, strict=True)]  # fmt: skip
    return Slice(anatomy_of_slice(outer), tuple(kept), inner.absent - outer.absent)


def anatomy_of_slice(part: Slice) -> Anatomy:
    """Anatomy of a sub-model, as a model of its own."""
    whole = part.anatomy
    groups = tuple(replace(g, size=k.count) for g, k in zip(whole.groups, part.kept, strict=True))
    arrays = {name: replace(whole.arrays[name], shape=shape) for name, shape in part.shapes.items()}
    return Anatomy(groups, arrays, whole.kept_whole, whole.statistics, whole.exits_after, whole.exits_in)


def _expand(kept: IndexSet | None, inner: int) -> Indices:
    if kept is None:
        return np.arange(inner)
    return kept.indices if inner == 1 else (kept.indices[:, None] * inner + np.arange(inner)).reshape(-1)
