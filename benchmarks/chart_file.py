"""Figures in the style of the reports, saved as SVG files that are the same for the same numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt_server.report.charts import COLOURS, GRID, PAPER, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "add_legend_above", "look", "new_grid", "save", "set_logarithmic"]


def new_grid(rows: int, columns: int, width: float = 3.4, height: float = 2.6) -> tuple[Figure, Any]:
    """Return an empty figure and its axes, an array of shape (rows, columns); each of this size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor=PAPER)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9)
    return figure, grid


def add_legend_above(row: Sequence[Axes], names: int) -> None:
    """Add the legend of the first axes above a row, in one line."""
    for axes in row:
        axes.set_title(" ", fontsize=11)
    legend = row[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=names, frameon=False, fontsize=9)
    legend.set_in_layout(False)


def set_logarithmic(axes: Axes) -> None:
    """Make both axes logarithmic, with plain numbers at the powers of ten."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:.10g}"))
        axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """Save a figure as an SVG file whose texts are texts."""
    from matplotlib import rc_context

    settings = {"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.family": ["sans-serif"]}
    with rc_context(settings):  # type: ignore[arg-type]
        figure.savefig(path, format="svg", facecolor=PAPER, metadata={"Date": None})
    text = re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL))
