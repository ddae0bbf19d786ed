"""Figures of the samples of each client, as in the theses of FedReb and FedAKD; matplotlib draws them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from fedquilt_common.data_tools.summaries import QUANTILES, TargetGroups
from fedquilt_common.errors import ExperimentError, PackageMissingError, how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FigureKind = Literal["bars", "bubbles"]
_WIDTH: Final = 9.0
_ROW: Final = 0.26
_SHORTEST, _TALLEST = 2.5, 40.0
_MOST_LEGEND: Final = 20
_LARGEST_BUBBLE: Final = 160.0
_DOTS_PER_INCH: Final = 150


def write_figure(path: Path, groups: TargetGroups, what: str, title: str, kind: FigureKind) -> None:
    """Draw the groups and write a PNG file.

    ``bars`` is the kind of figures 3.2, 3.3 and 5.4 of the FedReb thesis: a bar for each client, a colour for each
    class, the length for the number of samples. ``bubbles`` is that of figure 3.7 of the FedAKD thesis: a point for
    each class that a client has, here as large as the number of samples. Values of a regression are drawn as a box
    for each client: the quartiles, the median, and whiskers at 5 % and 95 %.

    Args:
        path: the new file.
        groups: of samples.
        what: what a group is, such as ``client``.
        title: the figure's title.
        kind: how to draw classes.

    Raises:
        ExperimentError: the targets are neither classes nor numbers.
        PackageMissingError: matplotlib is not installed.
    """
    if groups.kind == "samples":
        raise ExperimentError("--png: the targets of this data set are neither classes nor numbers; leave it out")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise PackageMissingError(f"--png requires matplotlib: {how_to_install('report')}") from None
    height = min(_TALLEST, max(_SHORTEST, 1.2 + _ROW * len(groups.groups)))
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    draw = _draw_boxes if groups.kind == "values" else _draw_bubbles if kind == "bubbles" else _draw_bars
    draw(axes, groups)
    axes.set_title(title)
    axes.set_ylabel(what)
    axes.set_yticks(_places(groups), [_escape(group.name) for group in groups.groups])
    axes.tick_params(axis="y", labelsize=min(9, max(5, 600 / max(1, len(groups.groups)))))
    axes.set_ylim(len(groups.groups) - 0.4, -0.6)
    figure.savefig(path, dpi=_DOTS_PER_INCH, format="png")


def _places(groups: TargetGroups) -> list[int]:
    return list(range(len(groups.groups)))


def _draw_bars(axes: Axes, groups: TargetGroups) -> None:
    counts = _count_matrix(groups)
    starts = np.cumsum(counts, axis=1) - counts
    for kind in range(counts.shape[1]):
        axes.barh(
            _places(groups), counts[:, kind], 0.8, starts[:, kind], color=_choose_colour(kind, counts.shape[1]),
            label=str(kind), linewidth=0,
        )  # fmt: skip
    axes.set_xlabel(groups.counted)
    if counts.shape[1] <= _MOST_LEGEND:
        axes.legend(title="class", fontsize=7, title_fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_bubbles(axes: Axes, groups: TargetGroups) -> None:
    counts = _count_matrix(groups)
    rows, kinds = np.nonzero(counts)
    most = max(1, int(counts.max(initial=0)))
    sizes = _LARGEST_BUBBLE * counts[rows, kinds] / most
    colours = [_choose_colour(int(row), counts.shape[0]) for row in rows]
    axes.scatter(kinds, rows, np.maximum(2.0, sizes), c=colours)
    axes.set_xlabel("class")
    axes.set_xlim(-0.6, counts.shape[1] - 0.4)
    if counts.shape[1] <= _MOST_LEGEND:
        axes.set_xticks(range(counts.shape[1]))
    axes.grid(linewidth=0.3)
    axes.set_axisbelow(True)


def _draw_boxes(axes: Axes, groups: TargetGroups) -> None:
    at = {share: place for place, share in enumerate(QUANTILES)}
    drawn = [(place, group) for place, group in enumerate(groups.groups) if group.quantiles]
    boxes: list[dict[str, Any]] = [
        {
            "whislo": group.quantiles[at[0.05]], "q1": group.quantiles[at[0.25]], "med": group.quantiles[at[0.5]],
            "q3": group.quantiles[at[0.75]], "whishi": group.quantiles[at[0.95]],
        }
        for _, group in drawn
    ]  # fmt: skip
    axes.bxp(boxes, positions=[place for place, _ in drawn], widths=0.6, orientation="horizontal", showfliers=False)
    axes.set_xlabel("target")


def _count_matrix(groups: TargetGroups) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([group.counts for group in groups.groups], dtype=np.int64).reshape(len(groups.groups), -1)


def _choose_colour(number: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab10"](number) if count <= 10 else colormaps["tab20"](number % 20)


def _escape(name: str) -> str:
    """Dollar signs would be read as formulas."""
    return name.replace("$", r"\$")
