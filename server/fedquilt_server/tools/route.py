"""A drone that collects soft labels: its way past all nodes and back along it (FedAKD thesis, section 4.4).

On the way out it takes each node's labels, on the way back it gives each node what was agreed on.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt_common.errors import ExperimentError, FedquiltError

Point = tuple[float, float]
"""Metres east and north."""
MOST_NODES = 200
FARTHEST = 1e7
"""Metres from 0,0: a quarter of the way around the Earth."""


@dataclass(frozen=True)
class Route:
    """``order``: the nodes as they are visited on the way out. Lengths in metres, times in seconds."""

    start: Point
    nodes: Sequence[Point]
    order: Sequence[int]

    @property
    def out(self) -> list[Point]:
        """From the start past all nodes."""
        return [self.start, *(self.nodes[number] for number in self.order)]

    @property
    def distance(self) -> float:
        """Out and back the same way."""
        return 2 * sum(math.dist(a, b) for a, b in zip(self.out, self.out[1:], strict=False))

    def seconds(self, speed: float, exchange: float) -> float:
        """At ``speed`` metres a second, stopping at each node twice for ``exchange`` seconds; at the last one it takes
        and gives in one stop."""
        return self.distance / speed + 2 * len(self.nodes) * exchange


def plan_route(start: Point, nodes: Sequence[Point], seed: int = 0) -> Route:
    """A short way from ``start`` past all nodes: a tour by Christofides, made shorter by threshold accepting over the
    neighbours of 2-opt, of which the longer of the two legs at the start is left out (thesis, equations 4.5 to 4.8).

    Raises FedquiltError where networkx is not installed.
    """
    if len(nodes) < 2:
        return Route(start, nodes, list(range(len(nodes))))
    tour = _tour([start, *nodes], seed)
    if math.dist(start, _at(start, nodes, tour[1])) > math.dist(start, _at(start, nodes, tour[-2])):
        tour = tour[::-1]
    return Route(start, nodes, [stop - 1 for stop in tour[1:-1]])


def _at(start: Point, nodes: Sequence[Point], stop: int) -> Point:
    return start if stop == 0 else nodes[stop - 1]


def _tour(points: Sequence[Point], seed: int) -> list[int]:
    """A closed tour from point 0 to point 0."""
    try:
        import networkx
        from networkx.algorithms import approximation
    except ImportError as error:
        raise FedquiltError("planning a route needs networkx; pip install 'fedquilt[report]'") from error
    graph: Any = networkx.complete_graph(len(points))
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = math.dist(points[a], points[b])
    first = approximation.christofides(graph)
    leg = networkx.path_weight(graph, first, "weight") / len(points)
    shorter = approximation.threshold_accepting_tsp(
        graph, first, source=first[0], seed=seed, move=_reverse_a_part, threshold=leg / 4, alpha=0.05,
        N_inner=20 * len(points), max_iterations=60,
    )  # fmt: skip
    best: list[int] = min((first, shorter), key=lambda tour: networkx.path_weight(graph, tour, "weight"))
    place = best.index(0)
    return [*best[place:-1], *best[:place], 0]


def _reverse_a_part(tour: list[int], random: Any) -> list[int]:
    """A neighbour of the tour in the sense of 2-opt: two legs that cross are mended so.

    Another list, since networkx would not undo what it does not accept.
    """
    first, last = sorted(random.sample(range(1, len(tour)), 2))
    return [*tour[:first], *tour[first:last][::-1], *tour[last:]]


def read_nodes(path: Path) -> list[Point]:
    """Lines of ``x,y`` in metres; a first line with a word for each is a heading. Raises ExperimentError."""
    try:
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except FileNotFoundError:
        raise ExperimentError(f"{path}: there is no such file; check the path") from None
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise ExperimentError(f"{path}: is no text of x,y positions: {error}") from None
    if rows and _is_heading(rows[0][1]):
        rows = rows[1:]
    nodes = [_point(row, f"{path}, line {number}") for number, row in rows]
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ExperimentError(f"{path}: has {len(nodes)} positions; 1 to {MOST_NODES} can be visited")
    return nodes


def read_point(text: str) -> Point:
    """``x,y`` in metres. Raises ExperimentError."""
    return _point(text.split(","), f"--start {text}")


def _is_heading(row: Sequence[str]) -> bool:
    """``x,y`` or ``east, north``: words, none of which begins as a number does."""
    return all(cell.strip()[:1].isalpha() and cell.strip().lower() not in ("nan", "inf", "infinity") for cell in row)


def _point(row: Sequence[str], where: str) -> Point:
    try:
        x, y = map(float, row)
    except ValueError:
        raise ExperimentError(f"{where}: must be x,y in metres and nothing else, such as 120.5,40") from None
    if not (abs(x) <= FARTHEST and abs(y) <= FARTHEST):
        raise ExperimentError(f"{where}: must be within {FARTHEST:,.0f} m")
    return x, y


def plot(route: Route, path: Path) -> None:
    """The way as a picture, in the format of the suffix, such as .svg or .png.

    Raises FedquiltError where matplotlib is not installed, ExperimentError for a format that it does not write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedquiltError("a plot needs matplotlib; pip install 'fedquilt[report]'") from error
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    east, north = zip(*route.out, strict=True)
    axes.plot(east, north, "-", color="#3b6ea5", linewidth=1.2, zorder=1)
    axes.scatter(east[1:], north[1:], s=18, color="#1b1b1b", zorder=2, label=f"{len(route.nodes)} nodes")
    axes.scatter(east[:1], north[:1], s=60, marker="^", color="#c0392b", zorder=3, label="start")
    axes.set(xlabel="metres east", ylabel="metres north", title=f"{route.distance:,.0f} m out and back", aspect="equal")
    axes.legend(loc="best", frameon=False)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ExperimentError(f"--plot {path}: {error}") from None
