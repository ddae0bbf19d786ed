"""Sub-models by width: how many channels of each group, and which (FedRolex thesis, equations 3.4 to 3.6)."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.slices import Anatomy, Group, IndexSet, Slice

Rounding = Literal["floor", "ceil"]
Widths = Mapping[str, float]
"""From a kind of board to the part of the channels that it trains, above 0 and at most 1."""
DEFAULT_WIDTHS: Final[Widths] = {"strong": 1.0, "medium": 0.5, "weak": 0.25}
_DECIMALS: Final = 9
"""Products are rounded to this many decimals, because 0.29 * 100 is less than 29 in floating point."""


def count_channels(size: int, width: float, rounding: Rounding) -> int:
    """Count the channels of ``size`` that a width keeps: floor (FedRolex) or ceil (HeteroFL), and at least one."""
    exact = round(width * size, _DECIMALS)
    return max(1, math.floor(exact) if rounding == "floor" else math.ceil(exact))


def count_kept(group: Group, width: float, rounding: Rounding) -> int:
    """Count the channels of a group that a width keeps: at least one unit, which for most groups is one channel."""
    return group.unit * count_channels(group.size // group.unit, width, rounding)


def sub_model(anatomy: Anatomy, select: Callable[[Group], IndexSet]) -> Slice:
    """The sub-model that keeps ``select(group)`` of each channel group."""
    return Slice(anatomy, tuple(select(group) for group in anatomy.groups))


def cut_only(part: Slice, patterns: Sequence[str]) -> Slice:
    """Return the sub-model that is cut only in the channel groups whose names match.

    Args:
        part: a sub-model.
        patterns: of names, with the wildcards of shells, such as ``*.attention``.

    Raises:
        SliceError: a pattern matches no group.
    """
    names = [group.name for group in part.anatomy.groups]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SliceError(f"algorithm.cut = {pattern}: matches no channel group; the model has {', '.join(names)}")
    kept = [
        kept if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) else IndexSet.full(kept.size)
        for name, kept in zip(names, part.kept, strict=True)
    ]
    return Slice(part.anatomy, tuple(kept), part.absent)


def prefix(anatomy: Anatomy, width: float, rounding: Rounding) -> Slice:
    """The sub-model of the first channels of each group (HeteroFL; equation 3.6)."""
    return sub_model(anatomy, lambda g: IndexSet.prefix(g.size, count_kept(g, width, rounding)))


def window(anatomy: Anatomy, width: float, rounding: Rounding, start: Callable[[Group], int]) -> Slice:
    """The sub-model of a window of each group from ``start(group)`` on (FedRolex; equation 3.4).

    A window that reaches the end of its group continues at the group's first channel.
    """
    return sub_model(
        anatomy, lambda g: IndexSet.window(g.size, start(g) % g.size, count_kept(g, width, rounding))
    )  # fmt: skip


def random_subset(anatomy: Anatomy, width: float, rng: np.random.Generator) -> Slice:
    """The sub-model of random channels, with one draw for each group (Federated Dropout; equation 3.5)."""

    def draw(group: Group) -> IndexSet:
        count = count_kept(group, width, "floor")
        return IndexSet.of(group.size, np.sort(rng.choice(group.size, count, replace=False)))

    return sub_model(anatomy, draw)


def check_widths(name: str, widths: Widths) -> None:
    """Check the widths of an algorithm's field ``name``.

    Raises:
        ValueError: there are none, or one is not above 0 and at most 1.
    """
    if not isinstance(widths, Mapping) or not widths:
        raise ValueError(
            f"{name} = {widths!r}: give each kind of board a part of the model, such as "
            "{strong: 1.0, medium: 0.5, weak: 0.25}"
        )
    if wrong := [key for key, width in widths.items() if not _is_width(width)]:
        raise ValueError(f"{name}.{wrong[0]} = {widths[wrong[0]]!r}: give a part of the model above 0 and at most 1")


def _is_width(width: object) -> bool:
    return isinstance(width, int | float) and not isinstance(width, bool) and 0 < width <= 1


def level_of(kind: str, levels: Sequence[str]) -> str:
    """Level of a board of this kind: the one of the same name, or the smallest (last) one if there is none."""
    return kind if kind in levels else levels[-1]


def kinds_by_width(widths: Widths) -> list[str]:
    """Kinds of board from the greatest width to the smallest."""
    return sorted(widths, key=lambda kind: -widths[kind])
