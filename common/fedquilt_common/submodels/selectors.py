"""Selectors: which indices of one dimension of an array are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
"""Indices of one dimension, of shape (n,)."""
Selector = slice | Indices
"""The kept indices of one dimension: a slice with a start and a stop, or the indices themselves."""


def take(x: NDArray[Any], selectors: Sequence[Selector]) -> NDArray[Any]:
    """Take the selected indices of each dimension.

    Args:
        x: of any shape and dtype.
        selectors: one for each dimension of ``x``.

    Returns:
        An array of shape (length of each selector), with the dtype of ``x``; a view if all selectors are slices.
    """
    taken = x[tuple(s if isinstance(s, slice) else slice(None) for s in selectors)]
    for dim, selector in enumerate(selectors):
        if not isinstance(selector, slice):
            taken = np.take(taken, selector, axis=dim)
    return taken


def mesh(selectors: Sequence[Selector]) -> tuple[Any, ...]:
    """Index for ``x[mesh(selectors)] = ...`` that addresses all combinations of the selected indices.

    Without it numpy would combine several index arrays element by element.
    """
    if sum(not isinstance(s, slice) for s in selectors) <= 1:
        return tuple(selectors)
    return tuple(np.ix_(*(_as_indices(s) for s in selectors)))


def positions(indices: Indices, size: int) -> Indices:
    """For each of ``size`` channels its place in ``indices``, or -1; int64 of shape (size,)."""
    places = np.full(size, -1, np.int64)
    places[indices] = np.arange(len(indices))
    return places


def as_slice(indices: Indices) -> Selector:
    """Convert indices, int64 of shape (n,), to a slice if they are consecutive; else return them."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices


def _as_indices(selector: Selector) -> Indices:
    return np.arange(selector.start, selector.stop) if isinstance(selector, slice) else selector


def length(selector: Selector) -> int:
    """How many indices a selector selects."""
    return selector.stop - selector.start if isinstance(selector, slice) else len(selector)
