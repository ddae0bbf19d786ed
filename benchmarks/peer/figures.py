"""The comparison's table and picture, both from the lines of benchmarks/results/peer.jsonl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from resume import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPTIONS = {
    "0.1 MB": "round without training, 4 agents, 0.1 MB",
    "45 MB": "round without training, 4 agents, 45 MB",
    "simulation": "simulated round, 10 of 100 clients, Fashion-MNIST",
}
TABLE = re.compile(r"^\| \| fedquilt \|.*(?:\n\|.*)*", re.MULTILINE)
SIDES = ("fedquilt", "Flower", "Flower, short sleeps")


def select(lines: Sequence[Line], case: str, side: str) -> list[Line]:
    """Return the lines of a side of a case that were measured."""
    return [line for line in lines if (line["case"], line["side"]) == (case, side) and "skipped" not in line]


def inner_median(line: Line) -> float:
    """Return the median seconds of a run's rounds without the first, which starts up, and the last, which evaluates."""
    return float(median(line["seconds"][1:-1]))


def median_of(lines: Sequence[Line], case: str, side: str, name: str) -> float | None:
    """Return the median of a value over the repeats; None without one."""
    found = [line[name] for line in select(lines, case, side) if line.get(name) is not None]
    return median(found) if found else None


def spread(lines: Sequence[Line], case: str, side: str) -> tuple[float, float, float] | None:
    """Return the median, the least and the most of the repeats' ``inner_median``; None without any."""
    found = [inner_median(line) for line in select(lines, case, side)]
    return (median(found), min(found), max(found)) if found else None


def ratios(lines: Sequence[Line], case: str, side: str = "Flower") -> list[float]:
    """Return a side's time divided by fedquilt's in each repeat."""
    ours = {line["repeat"]: inner_median(line) for line in select(lines, case, "fedquilt")}
    return [inner_median(line) / ours[line["repeat"]] for line in select(lines, case, side) if line["repeat"] in ours]


def table(lines: Sequence[Line]) -> str:
    """Return the table as Markdown: medians, with the least and the most of the repeats."""
    flower = next(line["versions"]["flwr"] for line in lines if line["side"] == "Flower")
    rows = [f"| | fedquilt | Flower {flower} | ratio | memory | processor time |", "|---|---|---|---|---|---|"]
    for case, caption in CAPTIONS.items():
        ours, theirs = (spread(lines, case, side) for side in SIDES[:2])
        if ours and theirs:
            memory = f"{_both(lines, case, 'pss_bytes', 1e9)} GB | {_both(lines, case, 'processor_seconds', 1)} s"
            rows.append(f"| {caption} | {_seconds(ours)} | {_seconds(theirs)} | {_ratio(lines, case)} | {memory} |")
    loads = " | ".join(_load(lines, side) for side in SIDES[:2])
    return "\n".join([*rows, f"| load average before a run | {loads} | | | |"])


def _load(lines: Sequence[Line], side: str) -> str:
    """Return the least and the most load that a side met: other work on the machine makes rounds longer."""
    found = [line["machine"]["load_before"] for line in lines if line["side"] == side]
    return f"{min(found):.1f}-{max(found):.1f}"


def update_table(lines: Sequence[Line], page: Path) -> None:
    """Replace the table on a page by that of the lines.

    Raises:
        ValueError: the page has no table that begins with fedquilt's column.
    """
    text = page.read_text(encoding="utf-8")
    changed, count = TABLE.subn(lambda _: table(lines), text)
    if count != 1:
        raise ValueError(f"{page} has {count} tables that begin with '| | fedquilt |': it needs exactly one")
    page.write_text(changed, encoding="utf-8")


def _seconds(found: tuple[float, float, float]) -> str:
    middle, low, high = (f"{value:.3f}" if found[0] < 1 else f"{value:.2f}" for value in found)
    return f"{middle} s ({low}-{high})"


def _ratio(lines: Sequence[Line], case: str) -> str:
    found = ratios(lines, case)
    return " ".join([_short(median(found)), f"({_short(min(found))}-{_short(max(found))})"])


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _both(lines: Sequence[Line], case: str, name: str, unit: float) -> str:
    """Return the medians of a value of both sides, to three digits."""
    return " / ".join(f"{(median_of(lines, case, side, name) or 0) / unit:.3g}" for side in SIDES[:2])


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw the seconds of a round and the memory of all processes, one bar for each side of each case."""
    from chart_file import new_grid, save

    figure, grid = new_grid(2, 1, width=7)
    bars = [(case, side) for case in CAPTIONS for side in SIDES if select(lines, case, side)]
    times, memory = grid[:, 0]
    for place, bar in enumerate(bars):
        _draw_times(times, place, lines, *bar)
        _draw_bar(memory, place, (median_of(lines, *bar, "pss_bytes") or 0) / 1e9, bar[1])
    for axes, label in ((times, "seconds of a round (logarithmic)"), (memory, "memory of all processes [GB]")):
        axes.set_yticks(range(len(bars)), [f"{case}: {side}" for case, side in bars])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
    save(figure, path)


def _draw_times(axes: Axes, place: int, lines: Sequence[Line], case: str, side: str) -> None:
    """Draw a bar with the least and the most of the repeats."""
    axes.set_xscale("log")
    if (found := spread(lines, case, side)) is not None:
        middle, low, high = found
        _draw_bar(axes, place, middle, side)
        axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], color="#1c2034", capsize=3)


def _draw_bar(axes: Axes, place: int, width: float, side: str) -> None:
    from chart_file import COLOURS

    axes.barh(place, width, color=COLOURS[SIDES.index(side)], height=0.7)
    axes.annotate(f"{width:.3g}", (width, place), xytext=(8, 6), textcoords="offset points", fontsize=9)
