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
    """Lines of ``x,y`` in metres; a first line of words is a heading. Raises ExperimentError."""
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ExperimentError(f"{path}: is no text of x,y positions: {error}") from None
    nodes = [_point(row, path, number) for number, row in enumerate(rows, 1) if number > 1 or _is_number(row[0])]
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ExperimentError(f"{path}: has {len(nodes)} positions; 1 to {MOST_NODES} can be visited")
    return nodes


def read_point(text: str) -> Point:
    """``x,y`` in metres. Raises ExperimentError."""
    parts = text.split(",")
    if len(parts) != 2 or not all(_is_number(part) for part in parts):
        raise ExperimentError(f"--start {text}: must be x,y in metres, such as 120.5,40")
    return float(parts[0]), float(parts[1])


def _point(row: Sequence[str], path: Path, number: int) -> Point:
    if len(row) < 2 or not (_is_number(row[0]) and _is_number(row[1])):
        raise ExperimentError(f"{path}, line {number}: must be x,y in metres, such as 120.5,40")
    return float(row[0]), float(row[1])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


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
