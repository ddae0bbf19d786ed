"""Generated data sets in the shapes of real ones whose files are too large to generate for a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fedquilt_common.types import Dataset, Examples

GENERATED: Final[Mapping[str, str]] = {
    name: f"tests.support.generated:{function}"
    for name, function in {
        "aep": "load_aep", "wisdm-w": "load_wisdm", "wisdm-p": "load_wisdm", "ut-har": "load_ut_har",
        "widar": "load_widar",
    }.items()
}  # fmt: skip
"""Loaders by the name of the data set, as ``DATASETS`` has them."""


def _generate(name: str, shape: tuple[int, ...], classes: int, count: int) -> Dataset:
    """Return zeros, whose memory no page is spent on, with labels of all classes in equal parts."""
    y = np.arange(count) % classes if classes else np.arange(count, dtype=np.float32)[:, None]
    train, test = (Examples(np.zeros((len(part), *shape), np.float32), part) for part in (y, y[: count // 10]))
    return Dataset(name, train, test, classes)


def load_aep(folder: Path | None = None) -> Dataset:
    """Return 4,000 rows, for 80 clients."""
    return _generate("aep", (18,), 0, 4000)


def load_wisdm(folder: Path | None = None) -> Dataset:
    """Return 4,000 windows, for 80 clients."""
    return _generate("wisdm", (6, 200), 12, 4000)


def load_ut_har(folder: Path | None = None) -> Dataset:
    """Return 1,000 windows, for 20 clients."""
    return _generate("ut-har", (3, 30, 250), 7, 1000)


def load_widar(folder: Path | None = None) -> Dataset:
    """Return 2,000 profiles, for 40 clients."""
    return _generate("widar", (22, 20, 20), 9, 2000)
