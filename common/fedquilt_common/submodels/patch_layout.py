"""Patches: the entries of a model, grouped by the sub-models that contain them, so that each is published once.

Coordinator and boards compute the same layout from the slices of an exchange, which the manifest lists. So a patch
contains only numbers, in the order of its blocks. docs/slicing.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.files.digests import DigestKind, new_hash
from fedquilt_common.submodels.selectors import Indices, Selector, as_slice, length, mesh, positions, take
from fedquilt_common.submodels.slices import ArrayAnatomy, Axis, IndexSet, Slice
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import from_wire, read_numbers, to_wire, wire_format

MOST_SLICES: Final = 62
"""A set of slices is one 64-bit number, with a bit for each slice."""
MOST_PATCHES: Final = 64
MOST_BLOCKS: Final = 1024
"""Blocks of one array. Random subsets of many clients could otherwise need as many blocks as the model has numbers."""
_ALL: Final = -1


@dataclass(frozen=True)
class PatchBlock:
    """Entries of one array: all combinations of the selected indices of each dimension, in C order.

    Attributes:
        name: of the array.
        selectors: for each dimension a slice or int64 indices into the whole model's array.
    """

    name: str
    selectors: tuple[Selector, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of selected indices in each dimension."""
        return tuple(map(length, self.selectors))


@dataclass(frozen=True)
class Patch:
    """The entries that exactly the same set of slices contains.

    Attributes:
        needed_by: positions of these slices in the exchange's list, ascending.
        blocks: the entries.
    """

    needed_by: tuple[int, ...]
    blocks: tuple[PatchBlock, ...]

    @property
    def entries(self) -> int:
        """How many numbers the patch has."""
        return sum(math.prod(block.shape) for block in self.blocks)


def patch_layout(slices: Sequence[Slice]) -> tuple[Patch, ...]:
    """Divide the entries of some slices into patches, so that no entry is in two of them.

    If that takes too many patches or blocks, a single patch holds all entries that any slice contains. The coordinator
    still publishes each number once, but boards receive more than they need.

    Args:
        slices: distinct, and of one model.

    Returns:
        The patches, the same on every machine.
    """
    groups = _group_entries(slices) if len(slices) <= MOST_SLICES else None
    if groups is None or len(groups) > MOST_PATCHES:
        return (_cover(slices),)
    return tuple(Patch(_positions_of_bits(bits), tuple(blocks)) for bits, blocks in sorted(groups.items()))


def _positions_of_bits(bits: int) -> tuple[int, ...]:
    return tuple(position for position in range(MOST_SLICES) if bits >> position & 1)


def _group_entries(slices: Sequence[Slice]) -> dict[int, list[PatchBlock]] | None:
    """Blocks by the set of slices that contain them, as bits; None if an array has too many."""
    cache: dict[Axis, list[tuple[int, Selector]]] = {}
    groups: dict[int, list[PatchBlock]] = {}
    for name, array in slices[0].anatomy.arrays.items():
        having = sum(1 << position for position, part in enumerate(slices) if name not in part.absent)
        sides = [_group_indices(axis, slices, cache) for axis in array.axes]
        if math.prod(map(len, sides)) > MOST_BLOCKS:
            return None
        for combination in product(*sides):
            bits = reduce(int.__and__, (bits for bits, _ in combination), having)
            if bits:
                groups.setdefault(bits, []).append(PatchBlock(name, tuple(selector for _, selector in combination)))
    return groups


def _group_indices(
    axis: Axis, slices: Sequence[Slice], cache: dict[Axis, list[tuple[int, Selector]]]
) -> list[tuple[int, Selector]]:
    """Indices of a dimension by the set of slices that keep them, as bits."""
    if axis not in cache:
        bits = np.zeros(slices[0].whole_length(axis), np.int64)
        for position, part in enumerate(slices):
            bits[part.select(axis)] |= np.int64(1) << position
        cache[axis] = [(int(b), as_slice(np.flatnonzero(bits == b))) for b in np.unique(bits) if b]
    return cache[axis]


def _cover(slices: Sequence[Slice]) -> Patch:
    """One patch of the smallest sub-model in which all ``slices`` are nested."""
    kept = [np.unique(np.concatenate([part.kept[g].indices for part in slices])) for g in range(len(slices[0].kept))]
    anatomy = slices[0].anatomy
    cover = Slice(
        anatomy,
        tuple(IndexSet.of(group.size, indices) for group, indices in zip(anatomy.groups, kept, strict=True)),
        frozenset.intersection(*(part.absent for part in slices)),
    )
    return Patch(
        tuple(range(len(slices))), tuple(PatchBlock(name, selectors) for name, selectors in cover.selectors.items())
    )


def write_patch(path: Path, arrays: Arrays, patch: Patch, precision: Precision, digest: DigestKind = "xxh3") -> Blob:
    """Write the patch's numbers to a file, one block after the other.

    Args:
        path: of the file; its folder is made.
        arrays: the whole model's, in its shapes.
        patch: of ``patch_layout``.
        precision: of floating-point numbers in the file.
        digest: which digest of the file is returned.

    Returns:
        The file with its size and digest.
    """
    found, size = new_hash(digest), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    current: tuple[str, NDArray[Any]] = ("", np.empty(0))
    with path.open("wb") as file:
        for block in patch.blocks:
            if current[0] != block.name:
                current = block.name, np.asarray(arrays[block.name])
            data = to_wire(block.name, take(current[1], block.selectors), precision)
            view = data.reshape(-1).view(np.uint8).data
            file.write(view)
            found.update(view)
            size += len(view)
    return Blob(path, found.hexdigest(), size)


def patch_size(patch: Patch, anatomy: Mapping[str, ArrayAnatomy], precision: Precision) -> int:
    """Size of a patch in bytes; ``anatomy`` has the dtype of each array by name."""
    return sum(_block_size(block, anatomy, precision) for block in patch.blocks)


def _block_size(block: PatchBlock, anatomy: Mapping[str, ArrayAnatomy], precision: Precision) -> int:
    return math.prod(block.shape) * wire_format(anatomy[block.name].dtype, precision)[1].itemsize


class AssembledArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a sub-model, assembled from the files of its patches.

    Each access assembles one array, so loading a model takes the memory of one array. The arrays have the sub-model's
    shapes; floating-point numbers are float32, others keep their dtype.

    Args:
        part: the sub-model, one of ``slices``.
        slices: all slices of the exchange.
        files: of the patches that ``part`` needs, in the order of ``patch_layout``.
        precision: of floating-point numbers in the files.

    Raises:
        PayloadError: the number of files or the size of one is not that of the layout.
    """

    def __init__(self, part: Slice, slices: Sequence[Slice], files: Sequence[Path], precision: Precision) -> None:
        patches = [patch for patch in patch_layout(slices) if slices.index(part) in patch.needed_by]
        if len(patches) != len(files):
            raise PayloadError(f"the sub-model has {len(patches)} patches, but there are {len(files)} files")
        self._part, self._precision = part, precision
        self._places: dict[Axis, Indices] = {}
        self._overlaps: dict[tuple[Axis, int], tuple[Selector, Selector]] = {}
        self._blocks: dict[str, list[tuple[Path, int, PatchBlock]]] = {name: [] for name in part.shapes}
        for patch, file in zip(patches, files, strict=True):
            _check_size(patch, part.anatomy.arrays, file, precision)
            for block, offset in _block_offsets(patch, part.anatomy.arrays, precision):
                if block.name in self._blocks:
                    self._blocks[block.name].append((file, offset, block))

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __getitem__(self, name: str) -> NDArray[Any]:
        blocks, array = self._blocks[name], self._part.anatomy.arrays[name]
        wire, kind = wire_format(array.dtype, self._precision)
        target = np.empty(self._part.shapes[name], wire_format(array.dtype, "fp32")[1])
        for file, offset, block in blocks:
            numbers = read_numbers(file, kind, offset, math.prod(block.shape)).reshape(block.shape)
            overlaps = [self._overlap(axis, part) for axis, part in zip(array.axes, block.selectors, strict=True)]
            values = take(from_wire(numbers, wire), [in_block for _, in_block in overlaps])
            target[mesh([in_part for in_part, _ in overlaps])] = values
        return target

    def _overlap(self, axis: Axis, selector: Selector) -> tuple[Selector, Selector]:
        """Where the entries of a block's dimension are in the sub-model's, and in the block; only those in both."""
        key = axis, id(selector)  # many blocks share a selector, and keep it as long as this object
        if key not in self._overlaps:
            places = _places_in_sub_model(axis, self._part, self._places)[selector]
            self._overlaps[key] = as_slice(places[places >= 0]), as_slice(np.flatnonzero(places >= 0))
        return self._overlaps[key]


def _check_size(patch: Patch, anatomy: Mapping[str, ArrayAnatomy], file: Path, precision: Precision) -> None:
    expected, size = patch_size(patch, anatomy, precision), file.stat().st_size
    if expected != size:
        raise PayloadError(
            f"a patch has {size} bytes, but must have {expected} by the slices of the round: coordinator and board "
            "build different models; install the same versions of fedquilt and torch, and the same model"
        )


def _block_offsets(
    patch: Patch, anatomy: Mapping[str, ArrayAnatomy], precision: Precision
) -> Iterator[tuple[PatchBlock, int]]:
    """Yield each block of a patch and the byte at which it begins; blocks without entries are left out."""
    offset = 0
    for block in patch.blocks:
        size = _block_size(block, anatomy, precision)
        if size:
            yield block, offset
        offset += size


def _places_in_sub_model(axis: Axis, part: Slice, cache: dict[Axis, Indices]) -> Indices:
    """For each entry of the whole dimension its place in the sub-model, or -1; int64 of shape (whole length,)."""
    if axis not in cache:
        selector = part.select(axis)
        indices = np.arange(selector.start, selector.stop) if isinstance(selector, slice) else selector
        cache[axis] = positions(indices, part.whole_length(axis))
    return cache[axis]
