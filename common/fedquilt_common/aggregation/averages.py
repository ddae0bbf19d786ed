"""Averages of replies, block by block: memory does not grow with the number of clients or the size of an array.

Sums run in float64 and in client order, not in the order of arrival, so the result is bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import PayloadError
from fedquilt_common.process.cores import map_in_threads
from fedquilt_common.submodels.selectors import Selector, as_slice, length, mesh, positions
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import Arrays, ClientId, Shapes
from fedquilt_common.wire.codec import BLOCK, PackedArrays, block

Filling = Callable[[], None]
"""Fills a part of an array."""
_WORTH_THREADS: Final = 4 * BLOCK
"""Numbers of a model from which threads are worth their start."""


@dataclass(frozen=True)
class SubModelUpdate:
    """One client's trained sub-model.

    Attributes:
        arrays: in the shapes of ``part``.
        part: the sub-model.
        weight: the client's weight in the average, finite and not negative.
        held: the classes of which the client has samples, shape (outputs,); classifier rows of the others are left out
            of the average. None: all rows count.
    """

    arrays: Arrays
    part: Slice
    weight: float = 1.0
    held: NDArray[np.bool_] | None = None


def mean(replies: Mapping[ClientId, Reply], like: Arrays | None = None) -> dict[str, NDArray[Any]]:
    """Return the weighted mean of the replies' arrays.

    Args:
        replies: each with arrays of the same names and shapes.
        like: gives names, shapes and dtypes of the result, of which replies may have more; None: those of the first
            client's reply.

    Returns:
        One array for each name, computed in float64. Integer arrays, such as a norm layer's step counter, are rounded
        to the nearest integer; numbers above 2**53 are not exact.

    Raises:
        PayloadError: there is no reply, an array is missing or has another shape, or the weights do not sum to a
            positive finite number.
    """
    _check_weights({client: reply.weight for client, reply in replies.items()})
    ordered = [replies[client] for client in sorted(replies)]
    first = like if like is not None else ordered[0].arrays
    _check_alike({client: reply.arrays for client, reply in replies.items()}, _shapes_of(first))
    weighted = _join_shared(ordered)
    results, steps = dict[str, NDArray[Any]](), list[Filling]()
    for names in adjacent_arrays(first, [arrays for arrays, _ in weighted]):
        together = np.empty(sum(math.prod(first[name].shape) for name in names), first[names[0]].dtype)
        steps += _plan_mean(names[0], together, weighted)
        results |= _divide(together, {name: first[name].shape for name in names})
    run_steps(steps, results)
    return {name: results[name] for name in first}


def adjacent_arrays(first: Arrays, replies: Sequence[Arrays]) -> list[list[str]]:
    """Return the names of ``first`` in groups that lie one after another in each reply, of one dtype and any shape.

    A group is averaged as if it were one array: for many small replies, each array costs more than its numbers.
    """
    layouts = {reply.layout if isinstance(reply, PackedArrays) else None for reply in replies}
    layout = layouts.pop() if len(layouts) == 1 else None
    if layout is None or {name for name, _, _ in layout} != set(first):
        return [[name] for name in first]
    alike = groupby(layout, key=lambda place: (place[1], first[place[0]].dtype))
    return [[name for name, _, _ in group] for _, group in alike]


def _divide(together: NDArray[Any], shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Return views of these shapes that lie one after another in a flat array."""
    ends = accumulate(math.prod(shape) for shape in shapes.values())
    parts = zip(shapes.items(), ends, strict=True)
    return {name: together[end - math.prod(shape) : end].reshape(shape) for (name, shape), end in parts}


def _join_shared(replies: Sequence[Reply]) -> list[tuple[Arrays, float]]:
    """Return arrays and weights; replies that share their arrays, as those of a mean do, are joined."""
    weights: dict[int, float] = {}
    for reply in replies:
        weights[id(reply.arrays)] = weights.get(id(reply.arrays), 0.0) + reply.weight
    arrays = {id(reply.arrays): reply.arrays for reply in replies}
    return [(arrays[key], weight) for key, weight in weights.items()]


def step_towards(old: Arrays, mean: Arrays, length: float) -> dict[str, NDArray[Any]]:
    """Return ``old + length * (mean - old)``; if the length is 1, the mean to the bit.

    Args:
        old: has at least the arrays of ``mean``.
        mean: floating-point arrays.
        length: of the step.

    Returns:
        The arrays of ``mean``, in its shapes and dtypes.
    """
    changes = {name: np.asarray(x, np.float64) - old[name] for name, x in mean.items()}
    return {name: np.asarray(x + (length - 1) * changes[name], x.dtype) for name, x in mean.items()}


def aggregate(model: Arrays, updates: Mapping[ClientId, SubModelUpdate]) -> dict[str, NDArray[Any]]:
    """Replace each entry of the model by the weighted mean over the updates that have it.

    Entries that no update has keep their value exactly (FedRolex, equation 3.10; AdaptiveFL, algorithm 2). Where all
    updates are the whole model, the result is bit-identical to ``mean``.

    Args:
        model: the whole model, in the model's shapes.
        updates: the clients' sub-models, each in the shapes of its ``part``.

    Returns:
        New arrays in the shapes and dtypes of ``model``.

    Raises:
        PayloadError: there is no update, an array is missing or has another shape than in its ``part``, or the weights
            do not sum to a positive finite number.
    """
    _check_weights({client: update.weight for client, update in updates.items()})
    for client, update in updates.items():
        _check_arrays(client, update.arrays, update.part.shapes)
    ordered = [updates[client] for client in sorted(updates)]
    results, steps = dict[str, NDArray[Any]](), list[Filling]()
    for name in model:
        results[name], own = _plan_array(name, np.asarray(model[name]), ordered)
        steps += own
    run_steps(steps, results)
    return results


def _check_weights(weights: Mapping[ClientId, float]) -> None:
    if not weights:
        raise PayloadError("there is no reply to average")
    if not all(weight >= 0 for weight in weights.values()) or not 0 < sum(weights.values()) < math.inf:
        raise PayloadError("the replies' weights must not be negative, and their sum must be finite and not zero")


def _check_alike(replies: Mapping[ClientId, Arrays], shapes: Shapes) -> None:
    """Check that each reply has arrays of these names and shapes; one layout is checked once."""
    known = None
    for client, arrays in replies.items():
        layout = arrays.layout if isinstance(arrays, PackedArrays) else None
        if layout is None or layout != known:
            _check_arrays(client, arrays, shapes)
            known = layout


def _check_arrays(client: ClientId, arrays: Arrays, shapes: Shapes) -> None:
    found = _shapes_of(arrays)
    for name, shape in shapes.items():
        if name not in found:
            raise PayloadError(f"client {client}: the reply lacks the array '{name}', so it cannot be averaged")
        if found[name] != shape:
            raise PayloadError(f"client {client}: the array '{name}' has the shape {found[name]} instead of {shape}")


def _shapes_of(arrays: Arrays) -> Shapes:
    """Return the shape of each array by its name; no array is read from its file."""
    if isinstance(arrays, PackedArrays):
        return {name: shape for name, _, shape in arrays.layout}
    return {name: np.shape(x) for name, x in arrays.items()}


def run_steps(steps: Sequence[Filling], results: Arrays) -> None:
    """Run steps in any order; each fills its own part of the results, which have any shape."""

    def run(some: Sequence[Filling]) -> list[None]:
        return [step() for step in some]

    map_in_threads(run, steps, worth=sum(array.size for array in results.values()) >= _WORTH_THREADS)


def _plan_mean(name: str, result: NDArray[Any], weighted: Sequence[tuple[Arrays, float]]) -> Iterator[Filling]:
    """Return the steps that fill a new array with the weighted mean, a block each."""
    flat = result.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield partial(_mean_block, name, flat[start : start + BLOCK], start, weighted)


def _mean_block(name: str, result: NDArray[Any], start: int, weighted: Sequence[tuple[Arrays, float]]) -> None:
    total, product = np.zeros(result.size), np.empty(result.size)
    for arrays, weight in weighted:
        np.multiply(block(arrays, name, start, start + result.size), weight, out=product, dtype=np.float64)
        total += product
    total /= sum(weight for _, weight in weighted)
    result[:] = round_integers(total, result.dtype)


def round_integers(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Return values of any shape, rounded to the nearest whole numbers if ``dtype`` is one of integers."""
    return values if dtype.kind == "f" else np.asarray(np.rint(values))


def _plan_array(
    name: str, array: NDArray[Any], updates: Sequence[SubModelUpdate]
) -> tuple[NDArray[Any], list[Filling]]:
    """Return the new array, and the steps that fill it."""
    with_array = [update for update in updates if name not in update.part.absent]
    if with_array and all(_is_whole(name, array.shape, update) for update in with_array):
        whole = np.empty(array.shape, array.dtype)
        return whole, list(_plan_mean(name, whole, [(update.arrays, update.weight) for update in with_array]))
    rows = array.reshape(-1, 1) if array.ndim < 2 else array
    result: NDArray[Any] = rows.copy()
    row_maps = [_RowMap.from_update(name, update, rows.shape) for update in with_array]
    height = max(1, BLOCK // max(1, rows[:1].size))
    starts = range(0, len(rows), height)
    bands: list[Filling] = [
        partial(_aggregate_band, result[start : start + height], start, row_maps) for start in starts
    ]
    return result.reshape(array.shape), bands


def _is_whole(name: str, shape: tuple[int, ...], update: SubModelUpdate) -> bool:
    everywhere = all(s == slice(0, n) for s, n in zip(update.part.selectors[name], shape, strict=True)
                     if isinstance(s, slice))  # fmt: skip
    slices = all(isinstance(s, slice) for s in update.part.selectors[name])
    return slices and everywhere and (update.held is None or update.part.anatomy.arrays[name].outputs is None)


@dataclass(frozen=True)
class _RowMap:
    """Where one array of an update belongs in the model's array.

    Attributes:
        name: the array.
        update: the client's sub-model.
        rows: for each row of the model the row of the update, -1 for none; shape (rows,).
        columns: the model's indices of the update's columns, for each further dimension.
        own: an axis of the update's array, and the entries along it that count; None: all.
        shape: of the update's array, with at least two dimensions.
    """

    name: str
    update: SubModelUpdate
    rows: NDArray[np.int64]
    columns: tuple[Selector, ...]
    own: tuple[int, NDArray[np.int64]] | None
    shape: tuple[int, ...]

    @classmethod
    def from_update(cls, name: str, update: SubModelUpdate, shape: tuple[int, ...]) -> _RowMap:
        first, *rest = update.part.selectors[name] or (slice(0, 1),)
        indices = np.arange(first.start, first.stop) if isinstance(first, slice) else first
        rows = positions(indices, shape[0])
        columns, own = tuple(rest) or (slice(0, 1),), None
        outputs = update.part.anatomy.arrays[name].outputs
        if update.held is not None and outputs == 0:
            rows = np.where(update.held, rows, -1)
        elif update.held is not None and outputs is not None:
            own = outputs, np.flatnonzero(update.held)
            columns = (*columns[: outputs - 1], as_slice(own[1]), *columns[outputs:])
        return cls(name, update, rows, columns, own, (len(indices), *map(length, rest or [slice(0, 1)])))

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Return the update's rows ``first`` to ``last``, shape (last - first, ...)."""
        width = math.prod(self.shape[1:])
        values = block(self.update.arrays, self.name, first * width, last * width)
        return values.reshape(last - first, *self.shape[1:])


def _aggregate_band(band: NDArray[Any], start: int, row_maps: Sequence[_RowMap]) -> None:
    """Replace, in the model's rows from ``start`` on, the entries that an update has."""
    total, weights = np.zeros(band.shape), np.zeros(band.shape)
    for row_map in row_maps:
        own_rows = row_map.rows[start : start + len(band)]
        present = np.flatnonzero(own_rows >= 0)
        if not len(present):
            continue
        own = own_rows[present]
        first, last = int(own.min()), int(own.max()) + 1
        values = row_map.read(first, last)[as_slice(own - first)]
        if row_map.own is not None:
            values = values.take(row_map.own[1], axis=row_map.own[0])
        place = mesh((as_slice(present), *row_map.columns))
        total[place] += values.astype(np.float64) * row_map.update.weight
        weights[place] += row_map.update.weight
    np.divide(total, weights, out=total, where=weights > 0)
    np.copyto(band, round_integers(total, band.dtype), where=weights > 0, casting="unsafe")
