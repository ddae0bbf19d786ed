"""A model's base and head: the head is its last ``head_layers`` linear layers and what follows them.

FedPer, FedRep, FedBABU, FedROD and FedReb split models this way; the FedReb thesis compares one to three layers
(table 5.3). This module handles names of arrays only; ``tracing.heads`` has the torch modules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from fedquilt_common.errors import ExperimentError
from fedquilt_common.types import Arrays

WHOLE_MODEL: Final = "whole"
SECOND_HEAD: Final = "second_head"
"""Prefixes in a model with a second head: ``whole.<name in the model>`` are the arrays of the model,
``second_head.<name in the model>`` those of the second head."""


@dataclass(frozen=True)
class Head:
    """The head alone, as a model of its own; its samples are the features that ``Learner.features`` returns.

    Attributes:
        layers: number of linear layers in the head, 1 or more.
    """

    layers: int


@dataclass(frozen=True)
class TwoHeads:
    """The model with a second head on the same features; its outputs are [first head's, second head's].

    Attributes:
        layers: number of linear layers in each head, 1 or more.
        detached: gradients of the second head do not reach the base.
    """

    layers: int
    detached: bool = False


def check_head_layers(head_layers: object) -> None:
    """Check an algorithm's hyper-parameter of this name.

    Raises:
        ValueError: it is not a whole number of 1 or more.
    """
    if type(head_layers) is not int or head_layers < 1:
        raise ValueError(f"head_layers = {head_layers!r}: must be a whole number of 1 or more")


def head_names(heads: Sequence[Sequence[str]], head_layers: int) -> Sequence[str]:
    """Names of the arrays of the head.

    Args:
        heads: those of the last 1, 2, ... linear layers, as far as the model can be divided.
        head_layers: number of linear layers.

    Raises:
        ExperimentError: the model has fewer linear layers that can be its head.
        ValueError: ``head_layers`` is below 1.
    """
    if head_layers < 1:
        raise ValueError(f"head_layers = {head_layers}: a head has 1 linear layer or more")
    if head_layers > len(heads):
        raise ExperimentError(f"algorithm.head_layers = {head_layers}: {_explain_heads(len(heads))}")
    return heads[head_layers - 1]


def _explain_heads(count: int) -> str:
    if not count:
        return (
            "this model has no head. Let its one output be that of an nn.Linear which no other layer shares arrays "
            "with, on top of a base with parameters; a head on a base that cannot be traced must have its constants as "
            "buffers (register_buffer)"
        )
    return (
        f"at most the last {count} linear layers of this model can be its head, because a base must be left that "
        "shares no arrays with them; choose fewer layers, or a deeper model"
    )


def pick_arrays(arrays: Arrays, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``names`` lists, in the order of ``arrays``; shapes and dtypes stay."""
    return {name: arrays[name] for name in arrays if name in names}


def drop_arrays(arrays: Arrays, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``names`` does not list, in the order of ``arrays``; shapes and dtypes stay."""
    return {name: arrays[name] for name in arrays if name not in names}


def add_second_head(arrays: Arrays, head: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``TwoHeads``.

    Args:
        arrays: all of the model.
        head: of the second head, with the names and shapes that the head's arrays have in the model.

    Returns:
        The same arrays, in the same shapes, as ``whole.<name>`` and ``second_head.<name>``.
    """
    return {
        **{two_heads_name(name): x for name, x in arrays.items()},
        **{f"{SECOND_HEAD}.{name}": x for name, x in head.items()},
    }


def split_second_head(arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the model's arrays and the second head's; the inverse of ``add_second_head``, shapes stay."""
    return _below(WHOLE_MODEL, arrays), _below(SECOND_HEAD, arrays)


def two_heads_name(name: str) -> str:
    """Name that an array of the model has among those of ``TwoHeads``."""
    return f"{WHOLE_MODEL}.{name}"


def _below(child: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{child}."): x for name, x in arrays.items() if name.startswith(f"{child}.")}


def shapes_of(arrays: Arrays, names: Collection[str]) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the named arrays, such as those that a reply must have."""
    return {name: tuple(arrays[name].shape) for name in arrays if name in names}
