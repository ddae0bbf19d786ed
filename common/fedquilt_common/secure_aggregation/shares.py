"""Secrets from shares of which some are wrong: a client may send shares that differ from those it received."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import comb
from typing import Final

from fedquilt_common.secure_aggregation.keys import join_shares

_WORK: Final = 40_000
"""Limits the sets that are tried for one secret: joining n shares takes time in n^2, 60 ms for 21 of them."""
_SECRETS: Final = 4
"""Limit for all secrets of a sum together, as a multiple of the limit for one secret."""

IsRight = Callable[[bytes], bool]


@dataclass
class ShareJoiner:
    """Joins the secrets of a sum. What it tries follows from the shares alone, so a recovery finds the same.

    Attributes:
        threshold: number of shares that give a secret.
        liars: positions whose share of a secret is wrong: its owner or its receiver sent a wrong one.
    """

    threshold: int
    liars: set[int] = field(default_factory=set)
    _trusted: tuple[int, ...] = ()
    _tried: int = 0

    def join(self, shares: Mapping[int, bytes], is_right: IsRight) -> bytes | None:
        """Return a secret, or None if no set of shares that was tried gives it.

        Args:
            shares: the share that each client sent, by its position in the result of ``split_secret``.
            is_right: whether a secret is the one that its owner is bound to.
        """
        for chosen in self._sets(sorted(shares)):
            secret = join_shares({position: shares[position] for position in chosen})
            if is_right(secret):
                self._note_liars(shares, chosen, is_right)
                self._trusted = chosen
                return secret
        return None

    def _sets(self, positions: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield sets of ``threshold`` positions: first the one that gave the secret before."""
        if self._trusted and set(self._trusted) <= set(positions):
            yield self._trusted
        most = _most_sets(self.threshold)
        for chosen in islice(_draw_sets(positions, self.threshold), min(most, _SECRETS * most - self._tried)):
            self._tried += 1
            yield chosen

    def _note_liars(self, shares: Mapping[int, bytes], right: tuple[int, ...], is_right: IsRight) -> None:
        """Note whose share is wrong, by trying it in the place of one that is right."""
        if right == self._trusted or right == tuple(sorted(shares))[: self.threshold]:
            return
        for position in sorted(shares.keys() - set(right)):
            members = (*right[1:], position)
            if not is_right(join_shares({member: shares[member] for member in members})):
                self.liars.add(position)


def _most_sets(size: int) -> int:
    """Return how many sets are tried for a secret: up to 10 shares all, if more than half of them are needed.

    With 3 wrong shares of 40, of which 21 are needed, one set of ten is right, and 90 are tried.
    """
    return max(32, min(256, _WORK // size**2))


def _draw_sets(positions: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of positions in an order that is always the same: all of them if they are few, else random ones."""
    if len(positions) < size:
        return
    yield tuple(positions[:size])
    if comb(len(positions), size) <= _most_sets(size):
        yield from islice(combinations(positions, size), 1, None)
        return
    draw = random.Random(0)  # noqa: S311 - it only decides what is tried
    while True:
        yield tuple(sorted(draw.sample(positions, size)))
