"""Figures in the style of the reports, saved as SVG files that are the same for the same numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt_server.report.charts import COLOURS, GRID, PAPER, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "look", "new_grid", "save"]


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


def save(figure: Figure, path: Path) -> None:
    """Save a figure as an SVG file whose texts are texts."""
    from matplotlib import rc_context

    settings = {"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.family": ["sans-serif"]}
    with rc_context(settings):  # type: ignore[arg-type]
        figure.savefig(path, format="svg", facecolor=PAPER, metadata={"Date": None})
    text = re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL))
