"""The picture of docs/scale.md: seconds of a round against clients, as the model of ``tree_model.py`` predicts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tree_model import Cost
from tree_predict import Federation, predict
from tree_tables import ROOT, steps_of

PICTURE: Final = ROOT / "docs" / "images" / "tree.svg"
CLIENTS: Final = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
SIZES: Final = (0.01, 1.0, 45.0)
TREES: Final = {"all boards at one broker": None, "fan-out 1,000": 1000, "fan-out 100": 100}
LAST: Final = "all steps"
"""What the page's table of steps ends with, in the program's future."""


def curves_of(size: float, costs: Mapping[str, Cost]) -> dict[str, list[float]]:
    """Return the predicted seconds of a round, in the order of ``CLIENTS``, for each kind of tree.

    Args:
        size: megabytes of the model.
        costs: of the parts, with sums of trained models.
    """
    curves = {name: [predict(Federation(clients, size, fan_out), costs).seconds for clients in CLIENTS]
              for name, fan_out in TREES.items()}  # fmt: skip
    ends = [steps_of(clients, size, costs)[-1] for clients in CLIENTS]
    return {**curves, LAST: [predict(plan, own).seconds for _, plan, own in ends]}


def draw(costs: Mapping[str, Cost], path: Path = PICTURE) -> None:
    """Draw the curves: a column for each size of the model."""
    from chart_file import add_legend_above, look, new_grid, save, set_logarithmic

    figure, grid = new_grid(1, len(SIZES))
    for column, size in enumerate(SIZES):
        axes = grid[0][column]
        for number, (name, seconds) in enumerate(curves_of(size, costs).items()):
            axes.plot(CLIENTS, seconds, label=name, linewidth=1.6, markersize=4, **look(number))
        set_logarithmic(axes)
        axes.set_xlabel(f"clients, {size:g} MB")
    grid[0][0].set_ylabel("seconds of a round")
    add_legend_above(grid[0], len(TREES) + 1)
    save(figure, path)
