"""The entries of a model grouped by the sub-models that want them, so that each is published once (design section 5).

Coordinator and boards compute the same layout from the slices of an exchange, which the manifest lists; so a patch
is nothing but numbers, in the order of its blocks.
"""

from __future__ import annotations

import hashlib
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
from fedquilt_common.submodels.slices import (
    ArrayAnatomy,
    Axis,
    IndexSet,
    Indices,
    Selector,
    Slice,
    as_slice,
    length,
    mesh,
    positions,
    take,
)
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import as_wire, from_wire, wire_dtype_of

MOST_SLICES: Final = 62
"""Sets of slices are bits of one 64-bit number."""
MOST_PATCHES: Final = 64
MOST_BLOCKS: Final = 1024
"""Of one array. Random subsets of many clients would cut a model into as many pieces as it has numbers."""
_ALL: Final = -1


@dataclass(frozen=True)
class PatchBlock:
    """Entries of one array: all combinations of the given indices of each dimension, in C order."""

    name: str
    chosen: tuple[Selector, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(length, self.chosen))


@dataclass(frozen=True)
class Patch:
    """What exactly one set of slices (positions in the exchange's list) is sent."""

    wanted_by: tuple[int, ...]
    blocks: tuple[PatchBlock, ...]

    @property
    def entries(self) -> int:
        return sum(math.prod(block.shape) for block in self.blocks)


def patch_layout(slices: Sequence[Slice]) -> tuple[Patch, ...]:
    """The patches of which ``slices``, distinct and of one model, are made; no entry is in two of them.

    Where the slices cut one another into too many pieces there is a single patch of all that any of them wants, of
    which every board takes its own: the coordinator still sends nothing twice, but boards receive more than they need.
    """
    pieces = _pieces(slices) if len(slices) <= MOST_SLICES else None
    if pieces is None or len(pieces) > MOST_PATCHES:
        return (_cover(slices),)
    return tuple(Patch(_slices_of(bits), tuple(blocks)) for bits, blocks in sorted(pieces.items()))


def _slices_of(bits: int) -> tuple[int, ...]:
    return tuple(position for position in range(MOST_SLICES) if bits >> position & 1)


def _pieces(slices: Sequence[Slice]) -> dict[int, list[PatchBlock]] | None:
    """Blocks by the set of slices that want them, as bits; None when there are too many."""
    classes: dict[Axis, list[tuple[int, Selector]]] = {}
    pieces: dict[int, list[PatchBlock]] = {}
    for name, array in slices[0].anatomy.arrays.items():
        having = sum(1 << position for position, part in enumerate(slices) if name not in part.absent)
        sides = [_classes(axis, slices, classes) for axis in array.axes]
        if math.prod(map(len, sides)) > MOST_BLOCKS:
            return None
        for combination in product(*sides):
            bits = reduce(int.__and__, (bits for bits, _ in combination), having)
            if bits:
                pieces.setdefault(bits, []).append(PatchBlock(name, tuple(chosen for _, chosen in combination)))
    return pieces


def _classes(
    axis: Axis, slices: Sequence[Slice], known: dict[Axis, list[tuple[int, Selector]]]
) -> list[tuple[int, Selector]]:
    """The indices of a dimension by the set of slices that keep them."""
    if axis not in known:
        bits = np.zeros(slices[0].whole_length(axis), np.int64)
        for position, part in enumerate(slices):
            bits[part.select(axis)] |= np.int64(1) << position
        known[axis] = [(int(b), as_slice(np.flatnonzero(bits == b))) for b in np.unique(bits) if b]
    return known[axis]


def _cover(slices: Sequence[Slice]) -> Patch:
    """One patch of the smallest sub-model in which all ``slices`` are nested."""
    kept = [np.unique(np.concatenate([part.kept[g].indices for part in slices])) for g in range(len(slices[0].kept))]
    anatomy = slices[0].anatomy
    cover = Slice(
        anatomy,
        tuple(IndexSet.of(group.size, indices) for group, indices in zip(anatomy.groups, kept, strict=True)),
        frozenset.intersection(*(part.absent for part in slices)),
    )
    return Patch(tuple(range(len(slices))), tuple(PatchBlock(name, chosen) for name, chosen in cover.selectors.items()))


def write_patch(path: Path, arrays: Arrays, patch: Patch, precision: Precision) -> Blob:
    """The patch's numbers one block after the other, and nothing else; written and digested in one go."""
    digest, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    held: tuple[str, NDArray[Any]] = ("", np.empty(0))
    with path.open("wb") as file:
        for block in patch.blocks:
            if held[0] != block.name:
                held = block.name, np.asarray(arrays[block.name])
            data = as_wire(block.name, take(held[1], block.chosen), precision)
            view = data.reshape(-1).view(np.uint8).data
            file.write(view)
            digest.update(view)
            size += len(view)
    return Blob(path, digest.hexdigest(), size)


def patch_size(patch: Patch, anatomy: Mapping[str, ArrayAnatomy], precision: Precision) -> int:
    """Bytes of a patch."""
    return sum(_block_size(block, anatomy, precision) for block in patch.blocks)


def _block_size(block: PatchBlock, anatomy: Mapping[str, ArrayAnatomy], precision: Precision) -> int:
    return math.prod(block.shape) * wire_dtype_of(anatomy[block.name].dtype, precision)[1].itemsize


class AssembledArrays(Mapping[str, NDArray[Any]]):
    """The arrays of the sub-model ``part``, one of ``slices``, from its patches' files in the order of
    ``patch_layout``.

    Each is put together anew when it is asked for, floats as fp32; so loading a model takes the memory of one array.

    Raises:
        PayloadError: when there are other files than it is made of, or one has another size.
    """

    def __init__(self, part: Slice, slices: Sequence[Slice], files: Sequence[Path], precision: Precision) -> None:
        wanted = [patch for patch in patch_layout(slices) if slices.index(part) in patch.wanted_by]
        if len(wanted) != len(files):
            raise PayloadError(f"the sub-model is made of {len(wanted)} patches, but {len(files)} were given")
        self._part, self._precision = part, precision
        self._known: dict[Axis, Indices] = {}
        self._pieces: dict[str, list[tuple[Path, int, PatchBlock]]] = {name: [] for name in part.shapes}
        for patch, file in zip(wanted, files, strict=True):
            _check_size(patch, part.anatomy.arrays, file, precision)
            for block, offset in _block_offsets(patch, part.anatomy.arrays, precision):
                if block.name in self._pieces:
                    self._pieces[block.name].append((file, offset, block))

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __getitem__(self, name: str) -> NDArray[Any]:
        pieces, array = self._pieces[name], self._part.anatomy.arrays[name]
        wire, kind = wire_dtype_of(array.dtype, self._precision)
        places = [_places_in_sub_model(axis, self._part, self._known) for axis in array.axes]
        target = np.empty(self._part.shapes[name], wire_dtype_of(array.dtype, "fp32")[1])
        for file, offset, block in pieces:
            numbers = np.memmap(file, kind, "r", offset, block.shape).view(np.ndarray)
            _write_block(target, from_wire(numbers, wire), block, places)
        return target


def _check_size(patch: Patch, anatomy: Mapping[str, ArrayAnatomy], file: Path, precision: Precision) -> None:
    expected, found = patch_size(patch, anatomy, precision), file.stat().st_size
    if expected != found:
        raise PayloadError(
            f"a patch has {found} bytes where the slices of the round make it {expected}: coordinator and board "
            "build different models; install the same versions of fedquilt and torch, and the same model"
        )


def _block_offsets(
    patch: Patch, anatomy: Mapping[str, ArrayAnatomy], precision: Precision
) -> Iterator[tuple[PatchBlock, int]]:
    """Each block of a patch, and at which byte of it the block begins; blocks without entries are left out."""
    offset = 0
    for block in patch.blocks:
        size = _block_size(block, anatomy, precision)
        if size:
            yield block, offset
        offset += size


def _places_in_sub_model(axis: Axis, part: Slice, known: dict[Axis, Indices]) -> Indices:
    """For each entry of the whole dimension its place in the sub-model, or -1."""
    if axis not in known:
        chosen = part.select(axis)
        indices = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        known[axis] = positions(indices, part.whole_length(axis))
    return known[axis]


def _write_block(target: NDArray[Any], values: NDArray[Any], block: PatchBlock, places: Sequence[Indices]) -> None:
    """Write the block's values to where the sub-model has them, without those that it does not have."""
    mine = [place[chosen] for place, chosen in zip(places, block.chosen, strict=True)]
    there = [as_slice(np.flatnonzero(own >= 0)) for own in mine]
    goal = tuple(as_slice(own[own >= 0]) for own in mine)
    target[mesh(goal)] = take(values, there)
