"""AdaptiveFL's model pool: sub-models by width ratio and start layer (Jia et al., DAC 2024, section 3.2, Table 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedquilt_common.errors import SliceError
from fedquilt_common.submodels.selection import sub_model
from fedquilt_common.submodels.slices import Anatomy, Group, IndexSet, Slice, full_slice
from fedquilt_common.types import Arrays

LARGE = "L"


@dataclass(frozen=True)
class Member:
    """One sub-model: ``level`` L, M, S; name such as M2; ``width`` r_w; ``start`` I, None for the whole model."""

    name: str
    level: str
    width: float
    start: int | None
    part: Slice


def make_pool(anatomy: Anatomy, levels: Mapping[str, float], starts: Sequence[int]) -> tuple[Member, ...]:
    """The 2p + 1 members in the paper's order S_p ... S_1, M_p ... M_1, L_1; ``starts`` are those of 1 ... p.

    Layers, counted from 0, are cut from ``start`` on to floor(width * channels).

    Raises:
        SliceError: when a width leaves a layer no channel, or the model has no layer at a start.
    """
    deepest = max((group.depth for group in anatomy.groups), default=-1)
    if levels and max(starts) > deepest:
        raise SliceError(
            f"algorithm.starts = {list(starts)}: nothing is cut from layer {max(starts)} on, because the last layer of "
            f"this model that can be cut is {deepest}; see `fedquilt model inspect`"
        )
    members = [
        Member(f"{level}{number}", level, width, start, _cut_from(anatomy, width, start))
        for level, width in sorted(levels.items(), key=lambda item: item[1])
        for number, start in sorted(enumerate(starts, 1), reverse=True)
    ]
    return (*members, Member(f"{LARGE}1", LARGE, 1.0, None, full_slice(anatomy)))


def _cut_from(anatomy: Anatomy, width: float, start: int) -> Slice:
    def kept(group: Group) -> IndexSet:
        if group.depth < start:
            return IndexSet.full(group.size)
        count = math.floor(round(width * group.size, 9))
        if count == 0:
            raise SliceError(
                f"algorithm.levels: a width of {width} leaves '{group.name}' none of its {group.size} channels; "
                "choose a greater width, or a model with more channels"
            )
        return IndexSet.prefix(group.size, count)

    return sub_model(anatomy, kept)


def nested_members(pool: Sequence[Member], sent: Slice) -> list[int]:
    """Positions of the members that are sub-models of ``sent``, from the largest to the smallest."""
    inside = [place for place, member in enumerate(pool) if member.part.within(sent)]
    return sorted(inside, key=lambda place: (-pool[place].part.entries, place))


def find_member(pool: Sequence[Member], candidates: Sequence[int], arrays: Arrays) -> int:
    """The position of the member among ``candidates`` that has the shapes of ``arrays``.

    Raises SliceError when there is none.
    """
    found = {name: tuple(arrays[name].shape) for name in arrays}
    for place in candidates:
        if pool[place].part.shapes == found:
            return place
    raise SliceError("the returned arrays are no sub-model that is nested in what was sent")
