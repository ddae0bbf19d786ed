"""Evaluation of a model and of its sub-models of several levels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.submodels.slices import Anatomy, Slice, cut
from fedquilt_common.types import Arrays


def evaluate_levels(arrays: Arrays, ctx: ServerContext, levels: Iterable[tuple[str, Slice]]) -> dict[str, float]:
    """Score the whole model and the sub-model of each level.

    ``accuracy`` is the "full" column of AdaptiveFL's Table 2, ``average_accuracy`` its "avg". The statistics of static
    batch norms are those of the whole model, so sub-models use those of the test batches instead.

    Args:
        arrays: the whole model, in the model's shapes.
        ctx: the server context.
        levels: name and sub-model of each level.

    Returns:
        The whole model's scores, ``accuracy_<level>`` of each level, and their mean ``average_accuracy``; the
        learning task's main metric in place of ``accuracy``.
    """
    scores, unmeasured = ctx.evaluate(arrays), without_statistics(arrays, ctx.anatomy)
    level_scores = {}
    for name, part in levels:
        whole = part.entries == ctx.anatomy.entries  # a window of full width has all channels in another order
        level_scores[name] = scores if whole else ctx.evaluate(cut(unmeasured, part), part)
    measure = ctx.learning_task.main.name
    values = [score[measure] for score in level_scores.values()]
    named = {f"{measure}_{name}": score[measure] for name, score in level_scores.items()}
    return {**scores, **named, f"average_{measure}": sum(values) / len(values)}


def without_statistics(arrays: Arrays, anatomy: Anatomy) -> Arrays:
    """Return the model with static batch norms that have measured nothing yet, so they use each batch's own.

    Args:
        arrays: the whole model, in the model's shapes.
        anatomy: names the statistics.
    """
    norms = {name.rpartition(".")[0] for name in anatomy.statistics}
    counters = [f"{norm}.num_batches_tracked".lstrip(".") for norm in sorted(norms)]
    return {**arrays, **{name: np.zeros((), np.int64) for name in counters}} if counters else arrays
