"""Models with early exits, for sub-models that are also cut in depth (ScaleFL)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError


class MultiExit(nn.Module):
    """Stages in sequence, with a classifier after some of them and after the last.

    Arrays are named ``stages.<k>.`` and ``exits.<k>.``, where exit k follows stage ``after[k]``.

    Args:
        stages: modules, each of which takes what the one before returns; the first takes samples.
        exits: modules that take what their stage returns, and return logits of shape (n, classes).
        after: the stage that each exit follows, ascending from 0; the last exit follows the last stage.

    Raises:
        ExperimentError: the exits do not match their stages.
    """

    def __init__(self, stages: Sequence[nn.Module], exits: Sequence[nn.Module], after: Sequence[int]) -> None:
        super().__init__()
        ascending = all(first < second for first, second in itertools.pairwise((-1, *after)))
        if len(exits) != len(after) or not ascending or not after or after[-1] != len(stages) - 1:
            raise ExperimentError(
                f"MultiExit: {len(exits)} exits after the stages {list(after)} of {len(stages)}; give each exit a "
                "stage of its own, counted from 0, and the last exit the last stage"
            )
        self.stages = nn.ModuleList(stages)
        self.exits = nn.ModuleList(exits)
        self.after = tuple(after)

    def cut(self, exits: int) -> None:
        """Remove all but the first ``exits`` exits, and the stages that no exit needs any more."""
        self.after = self.after[:exits]
        self.stages = self.stages[: self.after[-1] + 1]
        self.exits = self.exits[:exits]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every exit from shallow to deep, each of shape (n, classes)."""
        outputs = []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in self.after:
                outputs.append(self.exits[self.after.index(number)](x))
        return outputs


def find_exits(module: nn.Module) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Find a model's ``MultiExit``.

    Returns:
        The stage that each of its exits follows, and the names of the ``MultiExit`` in the model: "" for the model
        itself, several if the model has it as several attributes. Both are empty without one.
    """
    named = [(name, part) for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, MultiExit)]
    if not named:
        return (), ()
    first = named[0][1]
    return first.after, tuple(name for name, part in named if part is first)


def with_exits(
    name: str,
    stages: Sequence[nn.Module],
    ends: Sequence[tuple[int, bool]],
    head: nn.Module,
    exits: Sequence[int],
    classes: int,
) -> nn.Module:
    """Build a ``MultiExit``. An early exit is a linear layer, after the mean over the places if a stage has images.

    Args:
        name: of the model, for errors.
        stages: the model without its classifier.
        ends: for each stage its output channels, and whether its output is an image (n, channels, height, width).
        head: the classifier after the last stage.
        exits: 0-based, ascending numbers of the stages that get an early exit; not the last.
        classes: number of classes; 0 for regression.

    Raises:
        ExperimentError: ``exits`` is not a list of such stages.
    """
    last = len(stages) - 1
    listed = isinstance(exits, list | tuple) and all(type(e) is int and 0 <= e < last for e in exits)
    if not listed or list(exits) != sorted(set(exits)):
        raise ExperimentError(
            f"model.exits = {exits!r}: must be an ascending list of stages from 0 to {last - 1} after which '{name}' "
            f"gets an early exit; it has {last + 1} stages, and the last one ends in the model's own classifier"
        )
    early = [_make_exit(*ends[stage], max(classes, 1)) for stage in exits]
    return MultiExit(stages, [*early, head], [*exits, last])


def _make_exit(channels: int, places: bool, outputs: int) -> nn.Module:
    linear = nn.Linear(channels, outputs)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear) if places else linear
