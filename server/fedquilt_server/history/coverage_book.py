"""Counts how often each channel of the model was trained, and by which boards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import ClientId
from fedquilt_server.status.coverage import Coverage, LayerCoverage


def add_round(before: Coverage | None, parts: Mapping[ClientId, Slice], hosts: Mapping[ClientId, str]) -> Coverage:
    """Return the coverage after another round.

    Args:
        before: after the rounds before; None: there are none.
        parts: the sub-model of each client whose update was averaged; at least one.
        hosts: the agent of each client.
    """
    anatomy = next(iter(parts.values())).anatomy
    if before and [layer.name for layer in before.layers] != [group.name for group in anatomy.groups]:
        before = None  # a damaged file
    boards = [hosts.get(client, "") for client in parts]
    replies = dict(before.replies) if before else {}
    layers = [
        _add_to_layer(before.layers[i] if before else None, anatomy, i, list(parts.values()), boards, replies)
        for i in range(len(anatomy.groups))
    ]
    for board in boards:
        replies[board] = replies.get(board, 0) + 1
    return Coverage(rounds=(before.rounds if before else 0) + 1, replies=replies, layers=layers)


def _add_to_layer(
    before: LayerCoverage | None,
    anatomy: Anatomy,
    group: int,
    parts: Sequence[Slice],
    boards: Sequence[str],
    replies: Mapping[str, int],
) -> LayerCoverage:
    size = anatomy.groups[group].size
    latest: NDArray[np.int64] = np.zeros(size, np.int64)
    shares = before.boards if before else {}  # a damaged file may name boards without replies
    sums = {board: share * replies[board] for board, share in shares.items() if board in replies}
    counts = dict(replies)
    for part, board in zip(parts, boards, strict=True):
        trained = _trained_channels(part, group)
        latest[trained] += 1
        sums[board] = sums.get(board, 0.0) + len(trained) / size
        counts[board] = counts.get(board, 0) + 1
    total = latest + np.asarray(before.counts if before else 0)
    return LayerCoverage(
        name=anatomy.groups[group].name,
        counts=total.tolist(),
        latest=latest.tolist(),
        boards={board: sums[board] / counts[board] for board in sums},
    )


def _trained_channels(part: Slice, group: int) -> NDArray[np.int64]:
    """Return the channels of a group that a sub-model has; none if it leaves out the arrays that make them."""
    if part.absent and not any(_makes(part, name, group) for name in part.selectors):
        return np.empty(0, np.int64)
    return part.kept[group].indices


def _makes(part: Slice, name: str, group: int) -> bool:
    axes = part.anatomy.arrays[name].axes
    return bool(axes) and any(segment.group == group for segment in axes[0])
