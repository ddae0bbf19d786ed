"""Compares the values of two machines bit by bit: ``python -m tests.arm64.compare ONE.npz OTHER.npz``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Found = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Difference:
    """How far one array is from another.

    Attributes:
        name: of the array.
        count: its numbers.
        different: the part of the numbers whose bits differ, in [0, 1].
        ulp: greatest distance in units in the last place; None for whole numbers, and for other shapes or dtypes.
        relative: greatest difference, relative to the greatest change from the start if the array is a trained model,
            else to the greatest number.
    """

    name: str
    count: int
    different: float
    ulp: int | None
    relative: float

    @property
    def is_equal(self) -> bool:
        """Whether all bits are equal."""
        return self.different == 0


def differences(one: Found, other: Found) -> Iterator[Difference]:
    """Yield how far each array is from the other machine's, except for the common starts."""
    for name in [*one, *(name for name in other if name not in one)]:
        group, _, rest = name.partition("/")
        if group != "start":
            base = one.get(f"start/{rest.partition('/')[0]}") if group in ("step", "epoch") else None
            yield compare(name, one.get(name), other.get(name), base)


def compare(
    name: str, one: NDArray[Any] | None, other: NDArray[Any] | None, base: NDArray[Any] | None = None
) -> Difference:
    """Compare two arrays; one that is missing, or of another shape or dtype, differs everywhere."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return Difference(name, max(0 if x is None else x.size for x in (one, other)), 1.0, None, float("inf"))
    if one.size == 0:
        return Difference(name, 0, 0.0, 0, 0.0)
    bits = np.ascontiguousarray(one).view(f"u{one.itemsize}") != np.ascontiguousarray(other).view(f"u{one.itemsize}")
    if one.dtype != np.float32:
        return Difference(name, one.size, float(bits.mean()), None, float(bits.any()))
    change = np.abs(one if base is None else one - base).max()
    relative = float(np.abs(one.astype(np.float64) - other).max() / (change or 1.0))
    return Difference(name, one.size, float(bits.mean()), int(np.abs(_ordered(one) - _ordered(other)).max()), relative)


def _ordered(x: NDArray[Any]) -> NDArray[np.int64]:
    """Return whole numbers in the order of the floats, one apart for neighbours."""
    bits = np.ascontiguousarray(x).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def table(found: Iterable[Difference]) -> str:
    """Return the differences as a table in Markdown."""
    lines = ["| value | numbers | other bits | ulp | relative |", "|---|---|---|---|---|"]
    for each in found:
        ulp = "" if each.ulp is None else str(each.ulp)
        lines.append(f"| {each.name} | {each.count} | {each.different:.1%} | {ulp} | {each.relative:.1e} |")
    return "\n".join(lines)


def main(one: Path, other: Path) -> None:
    """Print how far the values of ``other`` are from those of ``one``."""
    with np.load(one) as first, np.load(other) as second:
        print(table(differences(dict(first), dict(second))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
