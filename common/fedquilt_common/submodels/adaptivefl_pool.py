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
Start = int | str
"""Where a sub-model begins to be cut: the 0-based number of a layer, or the name of a module."""


@dataclass(frozen=True)
class Member:
    """One sub-model of the pool.

    Attributes:
        name: level and number, such as M2.
        level: L, M or S.
        width: part of the channels that a cut layer keeps (the paper's r_w).
        start: 0-based number of the first layer that is cut (the paper's I); None for the whole model.
        part: the sub-model.
    """

    name: str
    level: str
    width: float
    start: int | None
    part: Slice


def make_pool(anatomy: Anatomy, levels: Mapping[str, float], starts: Sequence[Start]) -> tuple[Member, ...]:
    """Make the pool of 2p + 1 members, from the smallest to the largest.

    A member keeps floor(width * channels) of each layer from its start on, and the layers before in full. The latest
    start gives the level's largest member, number 1. With the paper's widths and starts the order is the paper's:
    S_p ... S_1, M_p ... M_1, L_1. Its tables need ascending sizes, so a small level's member of a late start may come
    after a larger level's.

    Args:
        anatomy: of the whole model.
        levels: width of each level below L, such as {M: 0.66, S: 0.4}.
        starts: the p different start layers, in any order.

    Raises:
        SliceError: a width leaves a layer no channel, the model has no layer at a start, two starts are one layer, or
            two members keep the same channels.
    """
    latest_first = sorted((find_start(anatomy, start) for start in starts), reverse=True) if levels else []
    if len(set(latest_first)) < len(latest_first):
        numbers = f" (layers {sorted(latest_first)}, counted from 0)"
        raise SliceError(
            f"algorithm.starts = {list(starts)}{numbers}: some are the same layer; give different ones; "
            "`fedquilt model inspect` lists the layers"
        )
    members = [
        Member(f"{level}{number}", level, width, start, cut_from(anatomy, width, start))
        for level, width in sorted(levels.items(), key=lambda item: item[1])
        for number, start in reversed([*enumerate(latest_first, 1)])
    ]
    ascending = sorted(members, key=lambda member: member.part.entries)
    pool = (*ascending, Member(f"{LARGE}1", LARGE, 1.0, None, full_slice(anatomy)))
    first: dict[tuple[IndexSet, ...], Member] = {}
    for member in pool:
        if (twin := first.setdefault(member.part.kept, member)) is not member:
            raise SliceError(_describe_equal(anatomy, levels, starts, (twin, member)))
    return pool


def _describe_equal(
    anatomy: Anatomy, levels: Mapping[str, float], starts: Sequence[Start], equal: tuple[Member, Member]
) -> str:
    """Return why two members are the same sub-model, and what to change.

    Args:
        anatomy: of the whole model.
        levels: as in ``make_pool``.
        starts: as in ``make_pool``.
        equal: the two members.
    """
    names = " and ".join(member.name for member in equal)
    if equal[0].level != equal[1].level:
        return (
            f"algorithm.levels = {dict(levels)}: {names} are the same sub-model, because the layers that they cut have "
            "too few channels for both widths; give widths that differ more, or a model with more channels"
        )
    earlier, later = sorted(member.start or 0 for member in equal)
    without = f"layer {earlier} has no channels of its own"
    if later > earlier + 1:
        without = f"layers {earlier} to {later - 1} have no channels of their own"
    layers = {group.depth: group.name for group in reversed(anatomy.groups)}
    return (
        f"algorithm.starts = {list(starts)}: {names} are the same sub-model, because {without}; replies would count "
        f"for the wrong one. Leave out the start {earlier} or {later}, or choose among the layers that have channels: "
        + ", ".join(f"{depth} ({layers[depth]})" for depth in sorted(layers))
    )


def find_start(anatomy: Anatomy, start: Start, key: str = "algorithm.starts") -> int:
    """Return the 0-based number of a start layer.

    Args:
        anatomy: of the whole model.
        start: that number, or the name of a module, such as ``layer3``, whose first layer that can be cut it is.
        key: of the experiment file that has the start layer, for errors.

    Raises:
        SliceError: the model has no such layer that can be cut.
    """
    names = {group.name: group.depth for group in anatomy.groups}
    if isinstance(start, str):
        depths = [depth for name, depth in names.items() if f"{name}.".startswith(f"{start}.")]
        if not depths:
            raise SliceError(
                f"{key} = {start}: the model can cut no layer of that name; choose the name of one of "
                f"these, or of a module around it: {', '.join(names)}"
            )
        return min(depths)
    if start < 0:
        raise SliceError(f"{key} = {start}: layers are numbered from 0; see `fedquilt model inspect`")
    deepest = max(names.values(), default=-1)
    if start > deepest:
        raise SliceError(
            f"{key} = {start}: no layer from {start} on can be cut, because the last layer of this model "
            f"that can be cut is {deepest}; choose a smaller start, see `fedquilt model inspect`"
        )
    return start


def cut_from(anatomy: Anatomy, width: float, start: int, key: str = "algorithm.levels") -> Slice:
    """Return the sub-model that keeps floor(width * channels) of each layer from ``start`` on (Table 1's r_w and I).

    Args:
        anatomy: of the whole model.
        width: part of the channels that a cut layer keeps, above 0 and at most 1.
        start: 0-based number of the first layer that is cut.
        key: of the experiment file that has the width, for errors.

    Raises:
        SliceError: the width leaves a layer no channel.
    """

    def select(group: Group) -> IndexSet:
        if group.depth < start:
            return IndexSet.full(group.size)
        count = group.unit * math.floor(round(width * (group.size // group.unit), 9))
        if count == 0:
            raise SliceError(
                f"{key}: a width of {width} leaves '{group.name}' none of its {group.size} channels; "
                "choose a greater width, or a model with more channels"
            )
        return IndexSet.prefix(group.size, count)

    return sub_model(anatomy, select)


def nested_members(pool: Sequence[Member], sent: Slice) -> list[int]:
    """Positions in the pool of the members that are nested in ``sent``, from the largest to the smallest."""
    inside = [place for place, member in enumerate(pool) if member.part.is_within(sent)]
    return sorted(inside, key=lambda place: (-pool[place].part.entries, place))


def find_member(pool: Sequence[Member], sent: int, arrays: Arrays) -> int:
    """Find the member that a client trained, by the shapes of its arrays.

    Args:
        pool: of ``make_pool``.
        sent: position in the pool of the member that the client received.
        arrays: as the client returned them.

    Returns:
        ``sent`` if that member has these names and shapes, else the position of the largest nested one that has them.

    Raises:
        SliceError: neither has them.
    """
    shapes = {name: tuple(arrays[name].shape) for name in arrays}
    if pool[sent].part.shapes == shapes:
        return sent
    for place in nested_members(pool, pool[sent].part):
        if pool[place].part.shapes == shapes:
            return place
    raise SliceError("the returned arrays have the shapes of no sub-model that is nested in the published one")
