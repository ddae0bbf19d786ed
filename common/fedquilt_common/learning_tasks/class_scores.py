"""Scores that treat all classes alike, from counts for each class; needs no torch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

AnswerCounts = NDArray[np.float64]
"""Whole numbers of shape (3, classes): test samples of each class, right answers among them, answers that name it."""
CLASS_ACCURACY: Final = "class_accuracy_"
"""Prefix of the score of one class, followed by its number."""


def count_classes(y: NDArray[Any], answers: NDArray[Any], classes: int) -> AnswerCounts:
    """Count samples, right answers and answers for each class.

    Args:
        y: classes of the n test samples, integers of shape (n,).
        answers: classes that the model names, integers of shape (n,).
        classes: number of classes.
    """
    y, answers = y.astype(np.int64), answers.astype(np.int64)
    kinds = (y, y[y == answers], answers)
    return np.stack([np.bincount(of, minlength=classes)[:classes].astype(np.float64) for of in kinds])


def score_counts(counts: AnswerCounts) -> dict[str, float]:
    """Return the scores of pooled counts.

    Args:
        counts: as ``count_classes`` returns them, summed over clients.

    Returns:
        ``balanced_accuracy``, the mean recall of the classes with samples; ``macro_f1``, the mean F1 of the classes
        that have samples or are named; and ``class_accuracy_<number>``, the recall of each class with samples. All are
        in [0, 1]. Without samples there are none.
    """
    samples, right, named = counts
    held, known = samples > 0, samples + named > 0
    if not held.any():
        return {}
    recall = right[held] / samples[held]
    f1 = 2 * right[known] / (samples + named)[known]
    each = zip(np.flatnonzero(held).tolist(), recall.tolist(), strict=True)
    return {
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
        **{f"{CLASS_ACCURACY}{number}": value for number, value in each},
    }


def clip_counts(counts: AnswerCounts) -> AnswerCounts:
    """Return counts that can be true: a client may send any numbers."""
    samples, _, named = bounded = np.rint(np.clip(np.nan_to_num(counts), 0.0, float(1 << 40)))
    return np.stack([samples, np.minimum(bounded[1], np.minimum(samples, named)), named])
