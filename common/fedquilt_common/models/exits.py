"""Models with early exits, for sub-models that are cut in depth as well (ScaleFL)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError


class MultiExit(nn.Module):
    """Stages one after the other, with a classifier after some of them, the last stage among these.

    Returns the logits of every exit that is there, from shallow to deep.
    Arrays are named ``stages.<k>.`` and ``exits.<k>.``, where exit k stands after stage ``after[k]``.
    """

    def __init__(self, stages: Sequence[nn.Module], exits: Sequence[nn.Module], after: Sequence[int]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.exits = nn.ModuleList(exits)
        self.after = tuple(after)

    def cut(self, exits: int) -> None:
        """Leave only the first ``exits`` exits, and the stages before them."""
        self.after = self.after[:exits]
        self.stages = self.stages[: self.after[-1] + 1]
        self.exits = self.exits[:exits]

    def forward(self, x: Tensor) -> list[Tensor]:
        outputs = []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in self.after:
                outputs.append(self.exits[self.after.index(number)](x))
        return outputs


def with_exits(
    name: str,
    stages: Sequence[nn.Module],
    ends: Sequence[tuple[int, bool]],
    head: nn.Module,
    exits: Sequence[int],
    classes: int,
) -> nn.Module:
    """``MultiExit`` with an exit after each stage of ``exits`` (0-based) and ``head`` after the last one.

    ``ends``: for each stage the channels that it gives out, and whether they have places. An early exit is the mean
    over the places, if there are any, and a linear layer. Raises ExperimentError for stages that there are not.
    """
    last = len(stages) - 1
    listed = isinstance(exits, list | tuple) and all(type(e) is int and 0 <= e < last for e in exits)
    if not listed or list(exits) != sorted(set(exits)):
        raise ExperimentError(
            f"model.exits = {exits!r}: must be an ascending list of stages from 0 to {last - 1} after which '{name}' "
            f"gets an early exit; it has {last + 1} stages, and the last one ends in the model's own classifier"
        )
    early = [_exit(*ends[stage], max(classes, 1)) for stage in exits]
    return MultiExit(stages, [*early, head], [*exits, last])


def _exit(channels: int, places: bool, outputs: int) -> nn.Module:
    linear = nn.Linear(channels, outputs)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear) if places else linear
