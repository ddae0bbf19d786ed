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
        "widar": "load_widar", "casas": "load_casas", "epic-sounds": "load_epic_sounds", "visdrone": "load_visdrone",
        "stack-overflow": "load_stack_overflow",
    }.items()
}  # fmt: skip
"""Loaders by the name of the data set, as ``DATASETS`` has them."""


def _generate(
    name: str, shape: tuple[int, ...], classes: int, count: int, dtype: type[np.generic] = np.float32
) -> Dataset:
    """Return zeros, whose memory no page is spent on, with labels of all classes in equal parts."""
    y = np.arange(count) % classes if classes else np.arange(count, dtype=np.float32)[:, None]
    train, test = (Examples(np.zeros((len(part), *shape), dtype), part) for part in (y, y[: count // 10]))
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


def load_casas(folder: Path | None = None) -> Dataset:
    """Return 4,000 sequences, for 60 clients."""
    return _generate("casas", (2000,), 12, 4000, np.int64)


def load_epic_sounds(folder: Path | None = None) -> Dataset:
    """Return 6,000 spectrograms, for 210 clients."""
    return _generate("epic-sounds", (1, 400, 128), 44, 6000)


def load_visdrone(folder: Path | None = None) -> Dataset:
    """Return 700 images without objects, for 30 clients; their sides are a tenth, because clusters read each pixel."""
    y = np.full((700, 1024, 5), -1, np.float32)
    x = np.random.default_rng(0).random((700, 3, 64, 64), np.float32)
    examples = Examples(x, y)
    return Dataset("visdrone", examples, examples.take(np.arange(70)), 12, task="detection")


def load_stack_overflow(folder: Path | None = None) -> Dataset:
    """Return 2 sentences of each of 1,000 users."""
    words = np.random.default_rng(0).integers(1, 10_004, (2000, 21))
    train = Examples(words[:, :-1], words[:, 1:])
    subjects = np.arange(len(words)) % 1000
    return Dataset("stack-overflow", train, train.take(np.arange(20)), 10_004, subjects, task="next-word")
