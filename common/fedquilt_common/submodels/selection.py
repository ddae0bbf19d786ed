"""Sub-models by width: how many channels of each group, and which (FedRolex thesis, equations 3.4 to 3.6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from fedquilt_common.submodels.slices import Anatomy, Group, IndexSet, Slice

Rounding = Literal["floor", "ceil"]
Widths = Mapping[str, float]
"""Kind of board -> part of the channels that it trains."""
DEFAULT_WIDTHS: Final[Widths] = {"strong": 1.0, "medium": 0.5, "weak": 0.25}
_DECIMALS: Final = 9
"""0.29 of 100 channels are 29, though the product of the floating-point numbers is less."""


def channels(size: int, width: float, rounding: Rounding) -> int:
    """How many of ``size`` channels a width keeps: floor (FedRolex) or ceil (HeteroFL), and at least one."""
    exact = round(width * size, _DECIMALS)
    return max(1, math.floor(exact) if rounding == "floor" else math.ceil(exact))


def sub_model(anatomy: Anatomy, chosen: Callable[[Group], IndexSet]) -> Slice:
    """The sub-model that keeps ``chosen(group)`` of each channel group."""
    return Slice(anatomy, tuple(chosen(group) for group in anatomy.groups))


def prefix(anatomy: Anatomy, width: float, rounding: Rounding) -> Slice:
    """The first channels of each group (HeteroFL; equation 3.6)."""
    return sub_model(anatomy, lambda g: IndexSet.prefix(g.size, channels(g.size, width, rounding)))


def window(anatomy: Anatomy, width: float, rounding: Rounding, start: Callable[[Group], int]) -> Slice:
    """A window from ``start(group)`` on, going round at each group's own end (FedRolex; equation 3.4)."""
    return sub_model(
        anatomy, lambda g: IndexSet.window(g.size, start(g) % g.size, channels(g.size, width, rounding))
    )  # fmt: skip


def random_subset(anatomy: Anatomy, width: float, rng: np.random.Generator) -> Slice:
    """Random channels, one draw for each group (Federated Dropout; equation 3.5)."""

    def drawn(group: Group) -> IndexSet:
        count = channels(group.size, width, "floor")
        return IndexSet.of(group.size, np.sort(rng.choice(group.size, count, replace=False)))

    return sub_model(anatomy, drawn)


def check_widths(name: str, widths: Widths) -> None:
    """Raises ValueError unless there are widths, all above 0 and at most 1."""
    fine = isinstance(widths, Mapping) and len(widths) > 0
    if not fine or not all(_is_width(width) for width in widths.values()):
        raise ValueError(
            f"{name} = {widths!r}: give each kind of board a part of the model above 0 and at most 1, "
            "such as {strong: 1.0, medium: 0.5, weak: 0.25}"
        )


def _is_width(width: object) -> bool:
    return isinstance(width, int | float) and not isinstance(width, bool) and 0 < width <= 1


def level_of(kind: str, levels: Sequence[str]) -> str:
    """The level of a board of ``kind``: its own, or the smallest (last) one for a kind that has none."""
    return kind if kind in levels else levels[-1]


def kinds_by_width(widths: Widths) -> list[str]:
    """The kinds from the greatest width to the smallest."""
    return sorted(widths, key=lambda kind: -widths[kind])
