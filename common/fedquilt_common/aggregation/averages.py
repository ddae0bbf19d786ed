"""Averages of replies, block by block: memory does not grow with the number of clients or the size of a tensor.

Sums run in fp64 and in client order whatever the order of arrival, so the result is the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import PayloadError
from fedquilt_common.submodels.slices import Selector, Slice, as_slice, length, mesh, positions
from fedquilt_common.types import Arrays, ClientId
from fedquilt_common.wire.codec import block

BLOCK: Final = 1 << 18
"""Elements averaged at a time: 2 MiB of fp64, which stays in a processor's cache."""


@dataclass(frozen=True)
class SubModelUpdate:
    """One client's trained sub-model: ``arrays`` have the shapes of ``part``.

    ``held``, shape (outputs,), leaves out the classifier rows of classes that the client does not have.
    """

    arrays: Arrays
    part: Slice
    weight: float = 1.0
    held: NDArray[np.bool_] | None = None


def mean(replies: Mapping[ClientId, Reply], like: Arrays | None = None) -> dict[str, NDArray[Any]]:
    """The weighted mean of the replies' arrays, in the dtype of ``like`` (or of the first reply).

    Integer arrays (a norm layer's step counter) are rounded to the nearest integer.

    Raises:
        PayloadError: when there is no reply, or the weights do not sum to a positive finite number.
    """
    _check({client: reply.weight for client, reply in replies.items()})
    ordered = [replies[client] for client in sorted(replies)]
    first = like if like is not None else ordered[0].arrays
    given = [(reply.arrays, reply.weight) for reply in ordered]
    return {name: _mean_array(name, first[name], given) for name in first}


def aggregate(whole: Arrays, pieces: Mapping[ClientId, SubModelUpdate]) -> dict[str, NDArray[Any]]:
    """The whole model with every entry replaced by the weighted mean over the pieces that have it.

    Entries that no piece has keep their value exactly (FedRolex, equation 3.10; AdaptiveFL, algorithm 2). Where all
    pieces are the whole model, this is ``mean`` to the bit.

    Raises:
        PayloadError: when there is no piece, or the weights do not sum to a positive finite number.
    """
    _check({client: piece.weight for client, piece in pieces.items()})
    ordered = [pieces[client] for client in sorted(pieces)]
    return {name: _aggregate_array(name, np.asarray(whole[name]), ordered) for name in whole}


def _check(weights: Mapping[ClientId, float]) -> None:
    if not weights:
        raise PayloadError("there is no reply to average")
    if not all(0 <= weight < math.inf for weight in weights.values()) or sum(weights.values()) <= 0:
        raise PayloadError("the replies' weights must be finite, not negative and not all zero")


def _mean_array(name: str, like: NDArray[Any], given: Sequence[tuple[Arrays, float]]) -> NDArray[Any]:
    result = np.empty(like.shape, like.dtype)
    flat = result.reshape(-1)
    sums, products = np.empty(min(BLOCK, flat.size)), np.empty(min(BLOCK, flat.size))
    weight_of_all = sum(weight for _, weight in given)
    for start in range(0, flat.size, BLOCK):
        stop = min(start + BLOCK, flat.size)
        total, share = sums[: stop - start], products[: stop - start]
        total.fill(0.0)
        for arrays, weight in given:
            np.multiply(block(arrays, name, start, stop), weight, out=share, dtype=np.float64)
            total += share
        total /= weight_of_all
        flat[start:stop] = _round_integers(total, like.dtype)
    return result


def _round_integers(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    return values if dtype.kind == "f" else np.asarray(np.rint(values))


def _aggregate_array(name: str, whole: NDArray[Any], pieces: Sequence[SubModelUpdate]) -> NDArray[Any]:
    having = [piece for piece in pieces if name not in piece.part.absent]
    if having and all(_is_whole(name, whole.shape, piece) for piece in having):
        return _mean_array(name, whole, [(piece.arrays, piece.weight) for piece in having])
    rows = whole.reshape(-1, 1) if whole.ndim < 2 else whole
    result: NDArray[Any] = rows.copy()
    patches = [_RowMap.of(name, piece, rows.shape) for piece in having]
    height = max(1, BLOCK // max(1, rows[:1].size))
    for start in range(0, len(rows), height):
        _aggregate_band(result[start : start + height], start, patches)
    return result.reshape(whole.shape)


def _is_whole(name: str, shape: tuple[int, ...], piece: SubModelUpdate) -> bool:
    everywhere = all(s == slice(0, n) for s, n in zip(piece.part.selectors[name], shape, strict=True)
                     if isinstance(s, slice))  # fmt: skip
    slices = all(isinstance(s, slice) for s in piece.part.selectors[name])
    return slices and everywhere and (piece.held is None or piece.part.anatomy.arrays[name].outputs is None)


@dataclass(frozen=True)
class _RowMap:
    """One array of a piece: for each global row its own row (-1: none), and where its columns go."""

    name: str
    piece: SubModelUpdate
    rows: NDArray[np.int64]
    columns: tuple[Selector, ...]
    own_columns: NDArray[np.int64] | None
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, piece: SubModelUpdate, shape: tuple[int, ...]) -> _RowMap:
        first, *rest = piece.part.selectors[name] or (slice(0, 1),)
        indices = np.arange(first.start, first.stop) if isinstance(first, slice) else first
        rows = positions(indices, shape[0])
        columns, own = tuple(rest) or (slice(0, 1),), None
        outputs = piece.part.anatomy.arrays[name].outputs
        if piece.held is not None and outputs == 0:
            rows = np.where(piece.held, rows, -1)
        elif piece.held is not None and outputs == 1:
            own = np.flatnonzero(piece.held)
            columns = (as_slice(own), *columns[1:])
        return cls(name, piece, rows, columns, own, (len(indices), *map(length, rest or [slice(0, 1)])))

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Its own rows ``first`` to ``last``."""
        width = math.prod(self.shape[1:])
        values = block(self.piece.arrays, self.name, first * width, last * width)
        return values.reshape(last - first, *self.shape[1:])


def _aggregate_band(band: NDArray[Any], start: int, patches: Sequence[_RowMap]) -> None:
    """Replace what the pieces have of the rows from ``start`` on."""
    total, weights = np.zeros(band.shape), np.zeros(band.shape)
    for patch in patches:
        mine = patch.rows[start : start + len(band)]
        there = np.flatnonzero(mine >= 0)
        if not len(there):
            continue
        own = mine[there]
        first, last = int(own.min()), int(own.max()) + 1
        values = patch.read(first, last)[as_slice(own - first)]
        if patch.own_columns is not None:
            values = values[:, patch.own_columns]
        place = mesh((as_slice(there), *patch.columns))
        total[place] += values.astype(np.float64) * patch.piece.weight
        weights[place] += patch.piece.weight
    np.divide(total, weights, out=total, where=weights > 0)
    np.copyto(band, _round_integers(total, band.dtype), where=weights > 0, casting="unsafe")
