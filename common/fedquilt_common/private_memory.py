"""The parts of a client's private memory: the algorithm's arrays, and those that the agent adds to them."""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray

from fedquilt_common.types import Arrays

SECRETS: Final = ".secure/"
"""Start of the names of secure aggregation's secrets."""
OPTIMISERS: Final = ".optimiser/"
"""Start of the names of the states of optimisers that last (``training.keep_optimiser``)."""


def algorithm_arrays(memory: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of a client's private memory that belong to its algorithm."""
    return {name: memory[name] for name in memory if not name.startswith((SECRETS, OPTIMISERS))}


def without_secrets(memory: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of a client's private memory that its training depends on."""
    return {name: memory[name] for name in memory if not name.startswith(SECRETS)}
