"""Facts about a data set and about the samples of each client: counts of classes, or the distribution of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import Dataset, Examples

QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BINS: Final = 16
"""Bins of a histogram of targets; all groups share their edges."""
_BOX: Final = 5
"""Numbers of a box: its class, centre and size."""
_BLOCK: Final = 256


@dataclass(frozen=True)
class PartSummary:
    """The training or the test samples of a data set.

    Attributes:
        samples: how many.
        shape: of one sample.
        dtype: of the inputs.
        target_shape: of one target; () for a class.
        target_dtype: of the targets.
        least: smallest finite input; None without any.
        greatest: greatest finite input.
        not_finite: inputs that are NaN or infinite.
    """

    samples: int
    shape: tuple[int, ...]
    dtype: str
    target_shape: tuple[int, ...]
    target_dtype: str
    least: float | None
    greatest: float | None
    not_finite: int


@dataclass(frozen=True)
class TargetGroup:
    """The targets of one client, of one natural client, or of a part of a data set.

    Attributes:
        name: such as ``client 3``.
        samples: how many.
        counts: samples (boxes for detection) of each class, or of each bin of a regression's target; empty for other
            tasks.
        quantiles: of a regression's target at ``QUANTILES``; empty for other tasks.
        kept: samples that the client keeps for testing.
    """

    name: str
    samples: int
    counts: tuple[int, ...] = ()
    quantiles: tuple[float, ...] = ()
    kept: int = 0

    @property
    def classes(self) -> int:
        """Number of classes with samples."""
        return sum(count > 0 for count in self.counts)


@dataclass(frozen=True)
class TargetGroups:
    """Groups of samples with counts over the same classes or bins.

    Attributes:
        kind: ``classes``, ``values`` of a regression, or ``samples`` where targets cannot be counted.
        groups: one each, in order.
        edges: of the bins, one more than there are bins; empty unless ``values``.
        counted: what the counts are: ``samples``, or ``boxes`` of a detection.
    """

    kind: str
    groups: tuple[TargetGroup, ...]
    edges: tuple[float, ...] = ()
    counted: str = "samples"


@dataclass(frozen=True)
class SetSummary:
    """A data set.

    Attributes:
        name: its key.
        task: such as ``classification``.
        classes: how many; 0 without classes.
        note: a fact that readers of results need.
        parts: the samples for training and for testing.
        targets: of both parts.
        natural: the training samples of each person or device; None if they are not known.
    """

    name: str
    task: str
    classes: int
    note: str
    parts: Mapping[str, PartSummary]
    targets: TargetGroups
    natural: TargetGroups | None


def summarise_dataset(dataset: Dataset, task: str) -> SetSummary:
    """Collect the facts about a data set.

    Args:
        dataset: with ``x`` of shape (n, *input_shape).
        task: its name, for the summary.
    """
    parts = {"train": dataset.train, "test": dataset.test}
    targets = count_targets([(name, part.y) for name, part in parts.items()], dataset.classes)
    return SetSummary(
        dataset.name,
        task,
        dataset.classes,
        dataset.note,
        {name: _summarise_part(part) for name, part in parts.items()},
        targets,
        None if dataset.subjects is None else _count_subjects(dataset, dataset.subjects),
    )


def count_targets(
    groups: Sequence[tuple[str, NDArray[Any]]], classes: int, kept: Sequence[int] | None = None
) -> TargetGroups:
    """Count the targets of groups of samples.

    Args:
        groups: name and targets of each: classes of shape (n,); values of shape (n, 1) for regression; or boxes of
            shape (n, most, 5) for detection, of which the classes are counted.
        classes: how many; 0 without classes.
        kept: samples that each group keeps for testing; None: none.
    """
    held = kept or [0] * len(groups)
    if classes and all(_has_classes(y) for _, y in groups):
        counted = (
            TargetGroup(name, len(y), _to_ints(np.bincount(_take_classes(y), minlength=classes)), kept=rest)
            for (name, y), rest in zip(groups, held, strict=True)
        )
        has_boxes = any(y.ndim == 3 for _, y in groups)
        return TargetGroups("classes", tuple(counted), counted="boxes" if has_boxes else "samples")
    if not classes and all(y.dtype.kind == "f" and y.size == len(y) for _, y in groups):
        return _count_values(groups, held)
    sizes = (TargetGroup(name, len(y), kept=rest) for (name, y), rest in zip(groups, held, strict=True))
    return TargetGroups("samples", tuple(sizes))


def _has_classes(y: NDArray[Any]) -> bool:
    return (y.ndim == 1 and y.dtype.kind in "iu") or (y.ndim == 3 and y.shape[2] == _BOX)


def _take_classes(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return a class for each sample, or for each of its boxes; places without a box have a negative class."""
    kinds = y if y.ndim == 1 else y[:, :, 0]
    return kinds[kinds >= 0].astype(np.int64)


def _count_values(groups: Sequence[tuple[str, NDArray[Any]]], kept: Sequence[int]) -> TargetGroups:
    finite = [y[np.isfinite(y)] for _, y in groups]
    present = [y for y in finite if len(y)]
    if not present:
        sizes = (TargetGroup(name, len(y), kept=rest) for (name, y), rest in zip(groups, kept, strict=True))
        return TargetGroups("values", tuple(sizes))
    edges = np.linspace(min(float(y.min()) for y in present), max(float(y.max()) for y in present), BINS + 1)
    counted = (
        TargetGroup(
            name,
            len(y),
            _to_ints(np.histogram(values, edges)[0]),
            tuple(float(value) for value in np.quantile(values, QUANTILES)) if len(values) else (),
            rest,
        )
        for (name, y), values, rest in zip(groups, finite, kept, strict=True)
    )
    return TargetGroups("values", tuple(counted), tuple(map(float, edges)))


def _count_subjects(dataset: Dataset, subjects: NDArray[np.int64]) -> TargetGroups:
    order = np.argsort(subjects, kind="stable")
    names, starts = np.unique(subjects[order], return_index=True)
    shares = np.split(dataset.train.y[order], starts[1:])
    return count_targets([(str(name), y) for name, y in zip(names, shares, strict=True)], dataset.classes)


def _summarise_part(part: Examples) -> PartSummary:
    return PartSummary(
        len(part), tuple(part.x.shape[1:]), str(part.x.dtype), tuple(part.y.shape[1:]), str(part.y.dtype),
        *_find_range(part.x),
    )  # fmt: skip


def _find_range(x: NDArray[Any]) -> tuple[float | None, float | None, int]:
    """Return the smallest and the greatest finite input, and how many inputs are not finite.

    It reads a block at a time, because the samples may be on the disk.
    """
    if 0 in x.shape or x.dtype.kind not in "biuf":  # x.size would read all samples into memory
        return None, None, 0
    ends = [_find_ends(x[start : start + _BLOCK]) for start in range(0, len(x), _BLOCK)]
    least, greatest = min(low for low, _, _ in ends), max(high for _, high, _ in ends)
    not_finite = sum(count for _, _, count in ends)
    return (least, greatest, not_finite) if least <= greatest else (None, None, not_finite)


def _find_ends(block: NDArray[Any]) -> tuple[float, float, int]:
    """Return what ``_find_range`` does; infinity and its negative without any finite input."""
    least, greatest = float(block.min()), float(block.max())
    if math.isfinite(least) and math.isfinite(greatest):  # most blocks: no copy
        return least, greatest, 0
    finite = block[np.isfinite(block)].astype(np.float64)
    return float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf)), block.size - finite.size


def _to_ints(counts: NDArray[Any]) -> tuple[int, ...]:
    return tuple(int(count) for count in counts)
