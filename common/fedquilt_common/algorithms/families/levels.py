"""Evaluation of a model and of its sub-models of several levels."""

from __future__ import annotations

from collections.abc import Iterable

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.submodels.slices import Slice, cut
from fedquilt_common.types import Arrays


def evaluate_levels(arrays: Arrays, ctx: ServerContext, levels: Iterable[tuple[str, Slice]]) -> dict[str, float]:
    """Scores of the whole model, of the sub-model of each level, and the levels' average.

    ``accuracy`` is the "full" column of AdaptiveFL's Table 2, ``average_accuracy`` its "avg"; r2 for regression.
    """
    scores = ctx.evaluate(arrays)
    of_levels = {}
    for name, part in levels:
        of_levels[name] = scores if part.is_full else ctx.evaluate(cut(arrays, part), part)
    measure = "accuracy" if "accuracy" in scores else "r2"
    values = [score[measure] for score in of_levels.values()]
    named = {f"{measure}_{name}": score[measure] for name, score in of_levels.items()}
    return {**scores, **named, f"average_{measure}": sum(values) / len(values)}
