"""Boxes of an image: selecting detections from a model's candidates, and matching them with objects. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEAST_SCORE: Final = 0.001
"""Candidates with a lower score are no detections."""
MOST_OVERLAP: Final = 0.7
"""A detection that overlaps one of the same class with a higher score by more is left out."""
MOST_DETECTIONS: Final = 300
"""The largest number in an image; those with the highest scores are kept."""
_MOST_CANDIDATES: Final = 30_000
_CHUNK: Final = 1024

Places = NDArray[np.float64]
"""Boxes as centre x, centre y, width, height; shape (n, 4)."""


@dataclass(frozen=True)
class DetectedBoxes:
    """The detections of an image, in descending order of their scores.

    Attributes:
        places: shape (n, 4).
        scores: in [0, 1], shape (n,).
        kinds: classes, int64 of shape (n,).
    """

    places: Places
    scores: NDArray[np.float64]
    kinds: NDArray[np.int64]


def select_boxes(candidates: NDArray[Any]) -> DetectedBoxes:
    """Select detections by their scores, and leave out those that overlap a better one (non-maximum suppression).

    A candidate is a detection of each class whose score is high enough.

    Args:
        candidates: centre x, centre y, width, height and a score for each class; shape (candidates, 4 + classes).

    Returns:
        At most ``MOST_DETECTIONS``.
    """
    boxes, scores = candidates[:, :4].astype(np.float64), candidates[:, 4:].astype(np.float64)
    finite = np.isfinite(boxes).all(axis=1, keepdims=True)
    rows, kinds = np.nonzero(finite & (scores > LEAST_SCORE))
    order = np.argsort(-scores[rows, kinds], kind="stable")[:_MOST_CANDIDATES]
    rows, kinds = rows[order], kinds[order]
    kept = _suppress(boxes[rows], kinds)
    return DetectedBoxes(boxes[rows[kept]], np.minimum(scores[rows[kept], kinds[kept]], 1.0), kinds[kept])


def _suppress(places: Places, kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions that non-maximum suppression keeps, ascending; boxes are in descending order of scores.

    Works in chunks: most often the first one has enough detections, and the thousands that follow are not looked at.
    """
    kept = np.zeros(0, np.int64)
    for start in range(0, len(places), _CHUNK):
        left = np.arange(start, min(start + _CHUNK, len(places)))
        covered = _is_same(places, kinds, kept, left).any(axis=0)
        kept = np.append(kept, _keep_best(places, kinds, left[~covered]))[:MOST_DETECTIONS]
        if len(kept) == MOST_DETECTIONS:
            break
    return kept


def _keep_best(places: Places, kinds: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the first of ``left``, drop those that it covers, and go on with the rest."""
    kept = list[int]()
    while len(left) and len(kept) < MOST_DETECTIONS:
        best, left = left[:1], left[1:]
        kept.append(int(best[0]))
        left = left[~_is_same(places, kinds, best, left)[0]]
    return np.array(kept, np.int64)


def _is_same(
    places: Places, kinds: NDArray[np.int64], one: NDArray[np.int64], other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether two detections are of one class and overlap too much, shape (n, m)."""
    same: NDArray[np.bool_] = kinds[one][:, None] == kinds[other][None]
    return same & (overlaps(places[one], places[other]) > MOST_OVERLAP)


def overlaps(one: Places, other: Places) -> NDArray[np.float64]:
    """Return the intersection over union of each box of ``one`` with each of ``other``, shape (n, m)."""
    low = np.maximum((one[:, :2] - one[:, 2:] / 2)[:, None], (other[:, :2] - other[:, 2:] / 2)[None])
    high = np.minimum((one[:, :2] + one[:, 2:] / 2)[:, None], (other[:, :2] + other[:, 2:] / 2)[None])
    shared = np.maximum(high - low, 0.0).prod(axis=2)
    union = one[:, 2:].prod(axis=1)[:, None] + other[:, 2:].prod(axis=1)[None] - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1.0), 0.0)


def match_boxes(detected: Places, objects: NDArray[Any], least: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Match detections with objects of their class, as COCO's evaluation does.

    In the order of their scores, each detection takes the object that it overlaps most among those that are left.

    Args:
        detected: detections of one class in descending order of their scores, shape (n, 4).
        objects: objects of the class, shape (m, 4).
        least: overlaps that a match needs, shape (k,).

    Returns:
        Whether each detection matches an object at each overlap, shape (k, n).
    """
    overlap = overlaps(detected, objects.astype(np.float64))
    free = np.ones((len(least), len(objects)), np.bool_)
    hits = np.zeros((len(least), len(detected)), np.bool_)
    for number, row in enumerate(overlap):
        left = np.where(free, row, -1.0)
        best = left.shape[1] - 1 - left[:, ::-1].argmax(axis=1)  # the last of equals, as pycocotools takes it
        hit = left[np.arange(len(least)), best] >= least
        free[np.flatnonzero(hit), best[hit]] = False
        hits[:, number] = hit
    return hits
