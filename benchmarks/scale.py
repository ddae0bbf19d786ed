"""Measures what rounds without training cost against clients, megabytes and agents, as one picture.

    python benchmarks/scale.py            measure (under 10 minutes), replace results/scale.jsonl, draw the picture
    python benchmarks/scale.py --plot     draw docs/images/scale.svg from the results, measure nothing
    python benchmarks/scale.py --quick --out FOLDER    two small points, results and picture in FOLDER

It continues after an interruption. Linux only, because the memory is read from /proc.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from peer.fedquilt_side import deployment
from provenance import commit
from resume import Line, Progress, end_on_signals, read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scale.jsonl"
PICTURE = ROOT / "docs" / "images" / "scale.svg"
ROUNDS = 4


@dataclass(frozen=True)
class Point:
    """One measurement: what it varies, agents, clients of all agents together, model size in MB (10**6 bytes)."""

    varies: str
    agents: int
    clients: int
    megabytes: float


POINTS = (
    *(Point("clients", min(4, number), number, 0.01) for number in (1, 4, 16, 64, 250, 1000, 4000)),
    *(Point("megabytes", 4, 4, size) for size in (0.01, 0.1, 1, 10, 45, 100, 200)),
    *(Point("agents", number, number, 0.1) for number in (1, 2, 5, 10, 20, 50, 100)),
)
QUICK = (Point("clients", 1, 1, 0.01), Point("clients", 1, 3, 0.01))
TITLES = {
    "clients": "clients (0.01 MB, 4 agents)",
    "megabytes": "model in MB (4 agents)",
    "agents": "agents (0.1 MB, one client each)",
}
Curves = Mapping[str, Callable[[Line], float]]


def of_role(role: str, key: str) -> Callable[[Line], float]:
    """Return a function that reads a value of a role's processes from a line; MB of bytes."""
    return lambda line: float(line["processes"].get(role, {}).get(key, 0)) / 1e6


ROWS: Mapping[str, Curves] = {
    "seconds of a round": {"median": lambda line: inner_median(line)},
    "MB of a round": {"sent": lambda line: line["bytes_down"] / 1e6, "received": lambda line: line["bytes_up"] / 1e6},
    "MB of memory": {
        "coordinator": of_role("coordinator", "peak_bytes"),
        "broker": of_role("broker", "peak_bytes"),
        "an agent": of_role("agent", "peak_bytes"),
        "a worker": of_role("worker", "peak_bytes"),
        "all processes": lambda line: line["pss_bytes"] / 1e6,
    },
}
"""Row of the picture -> its curves. Peaks of resident memory; of all processes, the sum of proportional set sizes."""


def inner_median(line: Line) -> float:
    """Return the median seconds of a round, without the first, in which workers start."""
    return float(median(line["seconds"][1:]))


def measure(points: Sequence[Point], progress: Progress) -> None:
    """Measure the points that are not measured yet, and print each."""
    for point in points:
        work = partial(deployment, point.megabytes, point.agents, ROUNDS, clients=point.clients)
        line = progress.part(asdict(point), work)
        shown = {**asdict(point), "seconds": line["seconds"], "pss_bytes": line["pss_bytes"]}
        print(json.dumps({**shown, "load_before": line["machine"]["load_before"]}), flush=True)


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw all lines: a column for what varies, a row for what it costs."""
    from chart_file import add_legend_above, new_grid, save

    columns = [name for name in TITLES if any(line["varies"] == name for line in lines)]
    figure, grid = new_grid(len(ROWS), len(columns))
    for row, (label, curves) in enumerate(ROWS.items()):
        for column, varies in enumerate(columns):
            axes = grid[row][column]
            _draw_curves(axes, [line for line in lines if line["varies"] == varies], varies, curves)
            axes.set_ylabel("" if column else label)
            axes.set_xlabel(TITLES[varies] if row == len(ROWS) - 1 else "")
    for row, curves in enumerate(ROWS.values()):
        if len(curves) > 1:
            add_legend_above(grid[row], len(curves))
    save(figure, path)


def _draw_curves(axes: Axes, lines: Sequence[Line], varies: str, curves: Curves) -> None:
    from chart_file import look, set_logarithmic

    for number, (name, value) in enumerate(curves.items()):
        xs, ys = [line[varies] for line in lines], [value(line) for line in lines]
        axes.plot(xs, ys, label=name, linewidth=1.6, markersize=4, **look(number))
    set_logarithmic(axes)


def main() -> None:
    """Measure, and write results and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure two small points; needs --out")
    parser.add_argument("--out", type=Path, help="folder for results and picture (default: the project's)")
    parser.add_argument("--only", choices=list(TITLES), help="measure one series and keep the others' results")
    parser.add_argument("--plot", action="store_true", help="draw the results, measure nothing")
    options = parser.parse_args()
    end_on_signals()
    if options.quick and not options.out:
        parser.error("--quick would replace the project's results: add --out FOLDER")
    results = options.out / "scale.jsonl" if options.out else RESULTS
    if not options.plot:
        chosen = [point for point in QUICK if options.quick] or [
            point for point in POINTS if point.varies == (options.only or point.varies)
        ]
        kept = [line for line in read_lines(results) if options.only and line["varies"] != options.only]
        with Progress((options.out or ROOT / "build" / "scale") / "progress.jsonl", commit()) as progress:
            measure(chosen, progress)
            progress.finish(results, kept)
    draw(read_lines(results), options.out / "scale.svg" if options.out else PICTURE)


if __name__ == "__main__":
    main()
