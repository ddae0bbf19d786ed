"""Find the dimensions that must share one index set, by uniting channels step by step.

A dimension of a tensor is a sequence of *pieces*. A piece is ``channels``, each of which owns ``inner`` consecutive
entries. Two dimensions that meet are *united*, such as a convolution's input and its predecessor's output, or both
sides of an addition. Piece by piece, their channels become one; a piece that ends within one of the other side splits
it. A dimension to which no such rule applies stays whole, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


class Channels:
    """Channels that are cut alike.

    Attributes:
        size: how many.
        name: the layer that makes them.
        depth: number of that layer, in forward order.
        whole: why they are never cut; empty if they may be cut.
        same_as: the channels that they turned out to be; None if they are still their own.
    """

    def __init__(self, size: int, name: str = "", depth: int = 0, *, whole: str = "") -> None:
        self.size = size
        self.name = name
        self.depth = depth
        self.whole = whole
        self.same_as: tuple[ChannelRun, ...] | None = None


@dataclass(frozen=True)
class ChannelRun:
    """A piece of a dimension: ``inner`` consecutive entries for each channel."""

    channels: Channels
    inner: int = 1

    @property
    def length(self) -> int:
        """Number of entries."""
        return self.channels.size * self.inner


Dimension = tuple[ChannelRun, ...]


def dimension(size: int, name: str = "", depth: int = 0) -> Dimension:
    """Make a dimension of ``size`` new channels."""
    return (ChannelRun(Channels(size, name, depth)),)


NO_CHANNELS = "not made of channels"


def whole(size: int, why: str = NO_CHANNELS) -> Dimension:
    """Make a dimension that is never cut, for the reason ``why``."""
    return (ChannelRun(Channels(size, whole=why)),)


REST = whole(-1, "what the other sizes of a view leave")
"""A dimension whose size a view computes."""


def resolve(pieces: Iterable[ChannelRun]) -> Iterator[ChannelRun]:
    """Yield the pieces, with channels that turned out to be others replaced by those."""
    for piece in pieces:
        if piece.channels.same_as is None:
            yield piece
        else:
            yield from resolve(ChannelRun(part.channels, part.inner * piece.inner) for part in piece.channels.same_as)


def is_whole(dim: Dimension) -> bool:
    """Whether no part of the dimension can be cut."""
    return all(piece.channels.whole or piece.channels.size == 1 for piece in resolve(dim))


def keep_whole(dim: Dimension, why: str) -> None:
    """Mark all channels of a dimension as never cut, for the reason ``why``."""
    for piece in resolve(dim):
        piece.channels.whole = piece.channels.whole or why


def unite(one: Dimension, other: Dimension, why: str) -> None:
    """Make two dimensions share one index set; what cannot do so stays whole, for the reason ``why``."""
    left, right = deque(resolve(one)), deque(resolve(other))
    while left and right:
        if _refresh(left) or _refresh(right):
            continue
        longer, shorter = (left, right) if left[0].length >= right[0].length else (right, left)
        if longer[0].length > shorter[0].length:  # the shorter piece may have the channels that are split now
            longer.extendleft(reversed(_split(longer.popleft(), shorter[0].length, why)))
        else:
            _merge(left.popleft(), right.popleft(), why)


def _refresh(queue: deque[ChannelRun]) -> bool:
    """Resolve the first piece if its channels have turned out to be others; returns whether they have."""
    if queue[0].channels.same_as is None:
        return False
    queue.extendleft(reversed(list(resolve([queue.popleft()]))))
    return True


def _split(piece: ChannelRun, length: int, why: str) -> tuple[ChannelRun, ChannelRun]:
    channels = piece.channels
    if length % piece.inner:
        channels.whole = channels.whole or why
    if channels.whole:
        return whole(length, channels.whole)[0], whole(piece.length - length, channels.whole)[0]
    first = Channels(length // piece.inner, channels.name, channels.depth)
    second = Channels(channels.size - first.size, f"{channels.name}+{first.size}", channels.depth)
    channels.same_as = (ChannelRun(first), ChannelRun(second))
    return ChannelRun(first, piece.inner), ChannelRun(second, piece.inner)


def _merge(a: ChannelRun, b: ChannelRun, why: str) -> None:
    """Unite two pieces of the same length; the coarser channels then stand for both."""
    if a.channels is b.channels:
        return
    if a.channels.whole or b.channels.whole or (a.inner % b.inner and b.inner % a.inner):
        reasons = {a.channels.whole, b.channels.whole} - {"", NO_CHANNELS}
        reason = next(iter(sorted(reasons)), why)
        a.channels.whole, b.channels.whole = a.channels.whole or reason, b.channels.whole or reason
        return
    coarse, fine = (a, b) if (a.inner, _rank(b.channels)) >= (b.inner, _rank(a.channels)) else (b, a)
    coarse.channels.depth = min(coarse.channels.depth, fine.channels.depth)
    fine.channels.same_as = (ChannelRun(coarse.channels, coarse.inner // fine.inner),)


def _rank(channels: Channels) -> tuple[int, bool, bool]:
    """Sort key for the name that united channels keep: the earlier layer's, and a layer's before a part's."""
    return channels.depth, not channels.name, "+" in channels.name


def product(outer: Dimension, inner: Dimension, why: str) -> Dimension:
    """Join two dimensions to one, in C order: each entry of ``outer`` owns all of ``inner``."""
    inner_length, outer_length = length(inner), length(outer)
    if inner_length == 1:
        return outer
    if outer_length == 1:
        return inner
    if not is_whole(inner):
        if is_whole(outer):
            return inner * outer_length
        keep_whole(inner, why)
    return tuple(ChannelRun(piece.channels, piece.inner * inner_length) for piece in resolve(outer))


def split(dim: Dimension, sizes: tuple[int, ...], why: str) -> tuple[Dimension, ...]:
    """Split a dimension into several of the given sizes, in C order.

    The outermost one that owns whole channels is cut. If none does, either the channels are cut alike within each entry
    of the first, such as the heads of attention, or the first is cut if it is longer than the others together, such as
    the outputs of a maxout.
    """
    if len(sizes) == 1:
        return (dim,)
    first, rest = sizes[0], length(dim) // sizes[0]
    if first == 1:
        return (whole(1), *split(dim, sizes[1:], why))
    pieces = list(resolve(dim))
    if rest == 1 or is_whole(dim) or all(piece.inner % rest == 0 for piece in pieces):
        outer = tuple(ChannelRun(piece.channels, piece.inner // rest) for piece in pieces)
        kept = whole(first, why) if is_whole(dim) else outer
        return (kept, *(whole(size, why) for size in sizes[1:]))
    name, depth = pieces[0].channels.name, pieces[0].channels.depth
    if rest < first and len(pieces) == 1:  # several pieces may be several samples, whose number is not a size to cut
        together = Channels(first, name, depth)
        unite(dim, (ChannelRun(together, rest),), why)
        return (ChannelRun(together),), *(whole(size, why) for size in sizes[1:])
    inner = dimension(rest, name, depth)
    unite(dim, inner * first, why)
    return (whole(first, why), *split(inner, sizes[1:], why))


def length(dim: Dimension) -> int:
    """Number of entries of a dimension."""
    return sum(piece.length for piece in dim)
