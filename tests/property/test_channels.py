"""United dimensions keep the same entries, whichever channels a sub-model has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt_common.tracing.channels import ChannelRun, Channels, Dimension, length, resolve, unite

Plan = list[tuple[int, int]]
"""Pieces of a dimension: number of the channels, and entries for each."""


SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
PLANS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4)
PAIRS = st.lists(st.tuples(PLANS, PLANS), min_size=1, max_size=3)


@st.composite
def dimensions(draw: st.DrawFn) -> list[tuple[Dimension, Dimension]]:
    """Draw pairs of dimensions of one length each; pieces may have the same channels."""
    channels = [Channels(size, f"c{number}") for number, size in enumerate(draw(SIZES))]
    pairs = []
    for one, other in draw(PAIRS):
        made = [tuple(ChannelRun(channels[c % len(channels)], inner) for c, inner in plan) for plan in (one, other)]
        shortest = min(map(length, made))
        pairs.append((_cut(made[0], shortest), _cut(made[1], shortest)))
    return pairs


def _cut(dim: Dimension, size: int) -> Dimension:
    """Leave pieces out, and fill up with new channels."""
    kept: list[ChannelRun] = []
    for piece in dim:
        if sum(one.length for one in kept) + piece.length <= size:
            kept.append(piece)
    rest = size - sum(one.length for one in kept)
    return (*kept, ChannelRun(Channels(rest, "rest"))) if rest else tuple(kept)


def owners(dim: Dimension) -> list[tuple[int, int] | None]:
    """Return the channel that owns each entry; None for entries that are never cut."""
    found: list[tuple[int, int] | None] = []
    for piece in resolve(dim):
        free = not piece.channels.whole and piece.channels.size > 1
        for channel in range(piece.channels.size):
            found += [(id(piece.channels), channel) if free else None] * piece.inner
    return found


@given(dimensions())
@settings(max_examples=100)
def test_each_entry_belongs_to_the_same_channel_on_both_sides(pairs: list[tuple[Dimension, Dimension]]) -> None:
    for one, other in pairs:
        unite(one, other, "they differ")
    for one, other in pairs:
        assert owners(one) == owners(other)
        assert len(owners(one)) == length(one)
