"""Plan the route of a drone that collects soft labels, past all nodes and back (FedAKD thesis, section 4.4).

On the way out, the drone collects each node's labels. On the way back, it delivers the consensus to each node.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt_common.errors import ExperimentError, FedquiltError, how_to_install

Point = tuple[float, float]
"""A position in metres east and north."""
MOST_NODES = 200
FARTHEST = 1e7
"""The largest coordinate in metres, a quarter of the Earth's circumference."""


@dataclass(frozen=True)
class Route:
    """A route past all nodes and back the same way. Lengths in metres, times in seconds.

    Args:
        start: where the drone starts and lands.
        nodes: positions of the nodes.
        order: indices of ``nodes`` in the order of the visits on the way out.
    """

    start: Point
    nodes: Sequence[Point]
    order: Sequence[int]

    @property
    def out(self) -> list[Point]:
        """The positions on the way out, from the start to the last node."""
        return [self.start, *(self.nodes[number] for number in self.order)]

    @property
    def distance(self) -> float:
        """The length of the way out and back."""
        return 2 * sum(math.dist(a, b) for a, b in zip(self.out, self.out[1:], strict=False))


def plan_route(start: Point, nodes: Sequence[Point]) -> Route:
    """Plan a short route from ``start`` past all nodes (thesis, equations 4.5 to 4.8).

    Christofides' algorithm gives a closed tour. Threshold accepting with 2-opt moves shortens it. Of the two legs at
    the start, the longer one is left out. Nodes at the start come first and do not count as the ends of a leg.

    Raises:
        FedquiltError: networkx is not installed.
    """
    here = [number for number, node in enumerate(nodes) if node == start]
    away = [number for number, node in enumerate(nodes) if node != start]
    if len(away) < 2:
        return Route(start, nodes, [*here, *away])
    tour = _find_tour([start, *(nodes[number] for number in away)])
    order = [away[stop - 1] for stop in tour[1:-1]]
    if math.dist(start, nodes[order[0]]) > math.dist(start, nodes[order[-1]]):
        order.reverse()
    return Route(start, nodes, [*here, *order])


def _find_tour(points: Sequence[Point]) -> list[int]:
    """Return a short closed tour: indices of ``points``, from 0 to 0."""
    try:
        import networkx
        from networkx.algorithms import approximation
    except ImportError as error:
        raise FedquiltError(f"planning a route requires networkx: {how_to_install('report')}") from error
    graph: Any = networkx.complete_graph(len(points))
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = math.dist(points[a], points[b])
    first = approximation.christofides(graph)
    leg = networkx.path_weight(graph, first, "weight") / len(points)
    shorter = approximation.threshold_accepting_tsp(
        graph, first, source=first[0], seed=0, move=_reverse_part, threshold=leg / 4, alpha=0.05,
        N_inner=20 * len(points), max_iterations=60,
    )  # fmt: skip
    best: list[int] = min((first, shorter), key=lambda tour: networkx.path_weight(graph, tour, "weight"))
    place = best.index(0)
    return [*best[place:-1], *best[:place], 0]


def _reverse_part(tour: list[int], random: Any) -> list[int]:
    """Return a 2-opt neighbour of the tour: one part is reversed, which can remove a crossing.

    The result is a new list, because networkx does not undo a move that it rejects.
    """
    first, last = sorted(random.sample(range(1, len(tour)), 2))
    return [*tour[:first], *tour[first:last][::-1], *tour[last:]]


def read_nodes(path: Path) -> list[Point]:
    """Read a CSV file with one line ``x,y`` in metres per node, and an optional heading line.

    Raises:
        ExperimentError: the file cannot be read, a line is not a position, or there are no or too many nodes.
    """
    try:
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except FileNotFoundError:
        raise ExperimentError(f"{path}: there is no such file; check the path") from None
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise ExperimentError(f"{path}: is not a text file of x,y positions: {error}") from None
    if rows and _is_heading(rows[0][1]):
        rows = rows[1:]
    nodes = [_parse_point(row, f"{path}, line {number}") for number, row in rows]
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ExperimentError(f"{path}: has {len(nodes)} positions; there must be 1 to {MOST_NODES}")
    return nodes


def read_point(text: str) -> Point:
    """Read ``x,y`` in metres from the option ``--start``.

    Raises:
        ExperimentError: the text is not a position.
    """
    return _parse_point(text.split(","), f"--start {text}")


def _is_heading(row: Sequence[str]) -> bool:
    """Check for a heading such as ``x,y`` or ``east, north``: every cell begins with a letter and is not a number."""
    return all(cell.strip()[:1].isalpha() and cell.strip().lower() not in ("nan", "inf", "infinity") for cell in row)


def _parse_point(row: Sequence[str], where: str) -> Point:
    try:
        x, y = map(float, row)
    except ValueError:
        raise ExperimentError(f"{where}: write only x,y in metres, such as 120.5,40") from None
    if not (abs(x) <= FARTHEST and abs(y) <= FARTHEST):
        raise ExperimentError(f"{where}: x and y must be within {FARTHEST:,.0f} m of 0")
    return x, y


def plot(route: Route, path: Path) -> None:
    """Draw the route into a file, in the format of its suffix, such as .svg or .png.

    Raises:
        FedquiltError: matplotlib is not installed.
        ExperimentError: matplotlib does not support the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedquiltError(f"a plot requires matplotlib: {how_to_install('report')}") from error
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
