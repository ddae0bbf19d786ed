"""A model's base and head: the head is its last ``head_layers`` linear layers and what follows them.

FedPer, FedRep, FedBABU, FedROD and FedReb split models so; the FedReb thesis compares one to three layers (table 5.3).
Here they are only names of arrays; ``anatomy.heads`` has the modules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.types import Arrays

WHOLE: Final = "whole"
SECOND: Final = "second_head"
"""The two parts of a model with a second head: its arrays are ``whole.<name in the model>``, the head's own
``second_head.<name in the model>``."""


@dataclass(frozen=True)
class Head:
    """The head alone, as a model of its own: its samples are the features of ``Learner.features``."""

    layers: int


@dataclass(frozen=True)
class TwoHeads:
    """The model with a second head on the same features; its outputs are [first head's, second head's].

    ``detached``: nothing that the second head learns reaches the base.
    """

    layers: int
    detached: bool = False


def check_head_layers(head_layers: object) -> None:
    """Raises ValueError unless it is a whole number from 1."""
    if type(head_layers) is not int or head_layers < 1:
        raise ValueError(f"head_layers = {head_layers!r}: must be a whole number of 1 or more")


def head_names(anatomy: Anatomy, head_layers: int) -> frozenset[str]:
    """The arrays of the head. Raises ExperimentError where the model has no such head."""
    if head_layers > len(anatomy.heads):
        raise ExperimentError(
            f"algorithm.head_layers = {head_layers}: {_how_deep(anatomy)}; choose fewer layers, or a deeper model"
        )
    return anatomy.heads[head_layers - 1]


def _how_deep(anatomy: Anatomy) -> str:
    found = len(anatomy.heads)
    if not found:
        return "this model does not end in linear layers, one after the other, on top of a base with parameters"
    return f"of this model's linear layers the last {found} can be its head, so that a base is left"


def pick_arrays(arrays: Arrays, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of the arrays that are named, in their own order."""
    return {name: arrays[name] for name in arrays if name in names}


def drop_arrays(arrays: Arrays, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of the arrays that are not named, in their own order."""
    return {name: arrays[name] for name in arrays if name not in names}


def add_second_head(arrays: Arrays, head: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of ``TwoHeads``: the model's, and ``head`` as its second head."""
    return {
        **{two_heads_name(name): x for name, x in arrays.items()},
        **{f"{SECOND}.{name}": x for name, x in head.items()},
    }


def split_second_head(arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """What ``add_second_head`` put together: the model's arrays, and the second head's."""
    return _below(WHOLE, arrays), _below(SECOND, arrays)


def two_heads_name(name: str) -> str:
    """Return the name that an array of the model has in ``TwoHeads``."""
    return f"{WHOLE}.{name}"


def _below(child: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{child}."): x for name, x in arrays.items() if name.startswith(f"{child}.")}


def shapes_of(arrays: Arrays, names: Collection[str]) -> Mapping[str, tuple[int, ...]]:
    """What a reply must have that carries the named arrays only."""
    return {name: tuple(arrays[name].shape) for name in arrays if name in names}
