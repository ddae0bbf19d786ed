"""Sub-models: which channels of a model are kept, and the arrays cut accordingly.

A model's arrays are cut along *channel groups*: the dimensions that must share one index set (design section 1).
``anatomy.trace`` finds them; here they are only numbers, so that nothing needs torch.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import SliceError
from fedquilt_common.types import Arrays, Shapes

Indices = NDArray[np.int64]
Selector = slice | Indices
_MOST_RUNS_AS_LIST: Final = 8


@dataclass(frozen=True)
class IndexSet:
    """Distinct channels out of ``range(size)`` in the order in which the sub-model has them, as runs (start, stop).

    Raises SliceError when it is empty, reaches beyond ``size`` or names a channel twice.
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
                raise SliceError(f"channel {start} is named twice")
            end = stop

    @classmethod
    def full(cls, size: int) -> IndexSet:
        """All of them."""
        return cls(size, ((0, size),))

    @classmethod
    def prefix(cls, size: int, count: int) -> IndexSet:
        """The first ``count``; HeteroFL's choice."""
        return cls(size, ((0, count),) if count else ())

    @classmethod
    def window(cls, size: int, start: int, count: int) -> IndexSet:
        """``count`` channels from ``start`` on, going round at the end (FedRolex, equation 3.4)."""
        stop = start + count
        if not 0 <= start < size or count > size:
            raise SliceError(f"a window of {count} channels from {start} on does not fit into {size}")
        return cls(size, ((start, stop),) if stop <= size else ((start, size), (0, stop - size)))

    @classmethod
    def of(cls, size: int, indices: Iterable[int]) -> IndexSet:
        """The channels given one by one, in their order."""
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
        """The kept channels, shape (count,)."""
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in self.runs])

    @property
    def is_full(self) -> bool:
        """Whether it is all channels in their own order."""
        return self.runs == ((0, self.size),)

    def within(self, other: IndexSet) -> bool:
        """Whether every channel is also in ``other``."""
        return self.size == other.size and bool(np.isin(self.indices, other.indices).all())

    def encode(self) -> list[int] | str:
        """For a message: flat run bounds, or a base64 bitmap where those would be long (ascending sets only)."""
        ascending = all(a[1] <= b[0] for a, b in zip(self.runs, self.runs[1:], strict=False))
        if len(self.runs) <= _MOST_RUNS_AS_LIST or not ascending:
            return [bound for run in self.runs for bound in run]
        bits = np.zeros(self.size, np.uint8)
        bits[self.indices] = 1
        return b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()

    @classmethod
    def decode(cls, size: int, text: Sequence[int] | str) -> IndexSet:
        """What ``encode`` wrote. Raises SliceError for anything else."""
        if isinstance(text, str):
            return cls.of(size, np.flatnonzero(_bits(size, text)))
        if len(text) % 2:
            raise SliceError("an index set has a start without an end")
        return cls(size, tuple(zip(text[::2], text[1::2], strict=True)))


def _bits(size: int, text: str) -> NDArray[np.uint8]:
    try:
        packed = np.frombuffer(b64decode(text, validate=True), np.uint8)
    except ValueError:
        raise SliceError("an index set is not base64") from None
    if len(packed) != (size + 7) // 8:
        raise SliceError(f"an index set has {len(packed)} bytes for {size} channels")
    bits = np.unpackbits(packed, bitorder="little")
    if bits[size:].any():
        raise SliceError(f"an index set names channels out of range: there are {size}")
    return bits


@dataclass(frozen=True)
class Group:
    """A channel group. ``depth``: 0-based number, in forward order, of the first layer that makes its channels."""

    name: str
    size: int
    depth: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a dimension: ``inner`` consecutive entries for each channel of ``group`` (position in the
    anatomy's list), or ``inner`` entries that are never cut where ``group`` is None."""

    group: int | None
    inner: int


Axis = tuple[Segment, ...]


@dataclass(frozen=True)
class ArrayAnatomy:
    """One parameter or buffer: what each dimension is made of. ``outputs``: the dimension that runs over the
    model's outputs (the rows of a classifier), if there is one."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Axis, ...]
    outputs: int | None = None


@dataclass(frozen=True)
class Anatomy:
    """The channel groups of a model and how its arrays are made of them.

    ``kept_whole``: why some arrays are not cut; ``statistics``: the means and variances of static batch norms;
    ``exits_after``: for each exit of a model with several the stage that it stands after; ``heads``: for 1, 2, ...
    last linear layers the arrays of the head that begins there, as far as the model can be split so.
    """

    groups: tuple[Group, ...]
    arrays: Mapping[str, ArrayAnatomy]
    kept_whole: Mapping[str, str] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    exits_after: tuple[int, ...] = ()
    heads: tuple[frozenset[str], ...] = ()

    @property
    def entries(self) -> int:
        """Numbers in the whole model, buffers included."""
        return sum(math.prod(array.shape) for array in self.arrays.values())


@dataclass(frozen=True)
class Slice:
    """A sub-model: per channel group what is kept, in the anatomy's order; ``absent``: arrays left out altogether.

    Raises SliceError when the index sets are not those of the anatomy's groups.
    """

    anatomy: Anatomy = field(repr=False, compare=False)
    kept: tuple[IndexSet, ...]
    absent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        sizes = [group.size for group in self.anatomy.groups]
        if [k.size for k in self.kept] != sizes:
            raise SliceError(f"a sub-model has index sets for {[k.size for k in self.kept]}; the model's are {sizes}")
        foreign = sorted(self.absent - self.anatomy.arrays.keys())
        if foreign:
            raise SliceError(f"a sub-model leaves out {foreign[:3]}, which the model does not have")

    @cached_property
    def selectors(self) -> Mapping[str, tuple[Selector, ...]]:
        """Per array and dimension the global indices that are kept: a slice where they are consecutive."""
        return {
            name: tuple(self.select(axis) for axis in array.axes)
            for name, array in self.anatomy.arrays.items()
            if name not in self.absent
        }

    def select(self, axis: Axis) -> Selector:
        """The kept indices of one dimension."""
        parts, offset = [], 0
        for segment in axis:
            kept = None if segment.group is None else self.kept[segment.group]
            parts.append(offset + _expanded(kept, segment.inner))
            offset += segment.inner * (1 if kept is None else kept.size)
        return as_slice(np.concatenate(parts))

    def length(self, axis: Axis) -> int:
        """Entries of a dimension that are kept."""
        return sum(s.inner if s.group is None else s.inner * self.kept[s.group].count for s in axis)

    def whole_length(self, axis: Axis) -> int:
        """Entries of a dimension before it was cut."""
        return sum(s.inner if s.group is None else s.inner * self.kept[s.group].size for s in axis)

    @cached_property
    def shapes(self) -> Shapes:
        """Shape of each array of the sub-model."""
        return {name: tuple(map(length, chosen)) for name, chosen in self.selectors.items()}

    @cached_property
    def entries(self) -> int:
        """Numbers in the sub-model, buffers included."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def counts(self) -> dict[str, int]:
        """Channels kept by the name of their group."""
        return {group.name: kept.count for group, kept in zip(self.anatomy.groups, self.kept, strict=True)}

    @property
    def is_full(self) -> bool:
        """Whether it is the whole model."""
        return not self.absent and all(kept.is_full for kept in self.kept)

    def within(self, other: Slice) -> bool:
        """Whether every entry of this sub-model is one of ``other``'s."""
        return self.absent >= other.absent and all(a.within(b) for a, b in zip(self.kept, other.kept, strict=True))


def full_slice(anatomy: Anatomy) -> Slice:
    """The whole model."""
    return Slice(anatomy, tuple(IndexSet.full(group.size) for group in anatomy.groups))


def cut(arrays: Arrays, part: Slice) -> Arrays:
    """The sub-model's arrays, each taken from ``arrays`` when it is asked for, so that none is held twice: views where
    the kept entries are consecutive, copies elsewhere."""
    return _Cut(arrays, part.selectors)


@dataclass(frozen=True)
class _Cut(Mapping[str, NDArray[Any]]):
    arrays: Arrays
    chosen: Mapping[str, tuple[Selector, ...]]

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[str]:
        return iter(self.chosen)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return take(np.asarray(self.arrays[name]), self.chosen[name])


def relative(inner: Slice, outer: Slice) -> Slice:
    """``inner`` as a slice of the model that ``outer`` is, so that a received sub-model can be cut further.

    Its anatomy is that of the outer sub-model. Raises SliceError when ``inner`` is not nested in ``outer``.
    """
    if not inner.within(outer):
        raise SliceError("the sub-model is not nested in the one that it is to be cut from")
    kept = [IndexSet.of(b.count, positions(b.indices, b.size)[a.indices])
            for a, b in zip(inner.kept, outer.kept, strict=True)]  # fmt: skip
    return Slice(anatomy_of_slice(outer), tuple(kept), inner.absent - outer.absent)


def anatomy_of_slice(part: Slice) -> Anatomy:
    """The anatomy of a sub-model, a model in its own right."""
    groups = tuple(Group(g.name, k.count, g.depth) for g, k in zip(part.anatomy.groups, part.kept, strict=True))
    whole = part.anatomy.arrays
    arrays = {name: ArrayAnatomy(shape, whole[name].dtype, whole[name].axes, whole[name].outputs)
              for name, shape in part.shapes.items()}  # fmt: skip
    return Anatomy(groups, arrays, part.anatomy.kept_whole, part.anatomy.statistics, part.anatomy.exits_after)


def take(x: NDArray[Any], chosen: Sequence[Selector]) -> NDArray[Any]:
    """``x`` at the given indices of each dimension; a view if all of them are slices."""
    taken = x[tuple(s if isinstance(s, slice) else slice(None) for s in chosen)]
    for dim, selector in enumerate(chosen):
        if not isinstance(selector, slice):
            taken = np.take(taken, selector, axis=dim)
    return taken


def mesh(chosen: Sequence[Selector]) -> tuple[Any, ...]:
    """``chosen`` for ``x[mesh(chosen)] = ...``: numpy pairs up several index arrays unless they are spread out."""
    if sum(not isinstance(s, slice) for s in chosen) <= 1:
        return tuple(chosen)
    return tuple(np.ix_(*(_as_indices(s) for s in chosen)))


def positions(indices: Indices, size: int) -> Indices:
    """For each of ``size`` channels its place in ``indices``, -1 where it is not there."""
    places = np.full(size, -1, np.int64)
    places[indices] = np.arange(len(indices))
    return places


def as_slice(indices: Indices) -> Selector:
    """A slice where the indices are consecutive."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices


def _as_indices(selector: Selector) -> Indices:
    return np.arange(selector.start, selector.stop) if isinstance(selector, slice) else selector


def length(selector: Selector) -> int:
    """How many indices are selected."""
    return selector.stop - selector.start if isinstance(selector, slice) else len(selector)


def _expanded(kept: IndexSet | None, inner: int) -> Indices:
    if kept is None:
        return np.arange(inner)
    return kept.indices if inner == 1 else (kept.indices[:, None] * inner + np.arange(inner)).reshape(-1)
