"""Charts of a report, drawn by matplotlib: learning curves, clients, timeline, coverage.

Groups differ in colour, line style and marker, so a chart is readable in grey. The colours are those of the light
theme; ``svg`` replaces them by the page's variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fedquilt_common.errors import PackageMissingError, how_to_install
from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.library.quantities import QUANTITIES, Quantity
from fedquilt_server.library.run_files import ReplyPhases, reply_phases
from fedquilt_server.library.scales import scale_of
from fedquilt_server.report.detail import ClientScores, RunDetail
from fedquilt_server.report.groups import CurvePoint
from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.problems import natural_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = ("#1f5fbf", "#b3540c", "#117a55", "#a8327d", "#6b4fbb", "#7a6a00", "#0b7285", "#8c2f39")
LINES: Final = ("-", "--", "-.", ":")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
INK: Final = "#1c2034"
QUIET: Final = "#5d6479"
GRID: Final = "#d9dce5"
PAPER: Final = "#fefefe"
PHASES: Final = (("receive", "#1f5fbf", "///"), ("train", "#117a55", ""), ("send", "#b3540c", "\\\\\\"),
                 ("wait", "#d9dce5", ""))  # fmt: skip
_ORDER: Final = (3, 0, 2, 1)
"""Phases from the lowest layer to the top: of a board with several clients, one may train while others wait."""
WIDTH: Final = 5.0
MOST_BOARDS: Final = 60
MOST_LAYERS: Final = 80
MOST_POINTS: Final = 600
_BINS: Final = 64
_LONGEST_NAME: Final = 44
_LEAST_HEIGHT: Final = 2.4
"""Inches that the label of a colour bar needs, with the margins."""


@dataclass(frozen=True)
class Chart:
    """A drawn chart.

    Attributes:
        name: its name in file names.
        title: its caption.
        text: what it shows, for those who do not see it.
        figure: the drawing.
        group: the group whose run it shows; empty for a chart of all groups.
    """

    name: str
    title: str
    text: str
    figure: Figure
    group: str = ""


def require_matplotlib() -> None:
    """Check that charts can be drawn.

    Raises:
        PackageMissingError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise PackageMissingError(
            f"the charts of an HTML report require matplotlib: {how_to_install('report')}, "
            "or choose --format md, latex or csv, which have the tables only"
        ) from None


def new_figure(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of the page's width in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=PAPER)
    axes: Axes = figure.subplots()
    _plain(axes)
    return figure, axes


def _plain(axes: Axes) -> None:
    """Draw the axes quietly: two lines, thin grid, texts of one size."""
    axes.set_facecolor(PAPER)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=10)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=INK, size=10.5)
    axes.yaxis.label.set(color=INK, size=10.5)


def shorten(name: str) -> str:
    """Return a name that fits a legend. Dollar signs are escaped: matplotlib would read them as formulas."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    return "".join(letter if letter.isprintable() else "?" for letter in short).replace("$", r"\$")


def look(number: int) -> dict[str, Any]:
    """Return colour, line and marker of a group; 32 groups differ in line and marker."""
    marker = MARKERS[number % len(MARKERS)]
    line = LINES[(number + number // len(MARKERS)) % len(LINES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": line, "marker": marker}


def draw_curves(curves: Mapping[str, Sequence[CurvePoint]], axis: str, score: str) -> Figure | None:
    """Draw the learning curves of the groups against the rounds or a cost.

    Args:
        curves: group -> its points.
        axis: "round", or a cost: its sum so far.
        score: the score.

    Returns:
        The figure; None if no group has the cost.
    """
    curves = {name: thin_out(points) for name, points in curves.items()}
    places = {name: [_place(point, axis) for point in points] for name, points in curves.items()}
    shown = {name: [x for x in found if x is not None] for name, found in places.items()}
    drawn = {name: xs for name, xs in shown.items() if xs and len(xs) == len(places[name])}
    if not drawn:
        return None
    figure, axes = new_figure(3.6)
    x_scale = scale_of(QUANTITIES[axis].unit, [x for xs in drawn.values() for x in xs]) if axis in QUANTITIES else None
    y_scale = scale_of(QUANTITIES[score].unit, [])
    for number, (name, points) in enumerate(curves.items()):
        if name in drawn:
            xs = [x * (x_scale.factor if x_scale else 1) for x in drawn[name]]
            _draw_curve(axes, xs, points, QUANTITIES[score], shorten(name), look(number))
    symbol = x_scale.symbol if x_scale else ""
    axes.set_xlabel(f"{_axis_name(axis)}{f' [{symbol}]' if symbol else ''}")
    axes.set_ylabel(f"{QUANTITIES[score].heading}{f' [{y_scale.symbol}]' if y_scale.symbol else ''}")
    if axis == "round":
        _whole_numbers(axes)
    else:
        axes.set_xlim(left=0)
    add_legend(figure, len(drawn))
    return figure


def thin_out(points: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return every k-th point and the last one, at most ``MOST_POINTS`` and one: more would not be seen."""
    step = -(-len(points) // MOST_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _place(point: CurvePoint, axis: str) -> float | None:
    return float(point.round) if axis == "round" else point.costs[axis]


def _axis_name(axis: str) -> str:
    return QUANTITIES[axis].heading if axis in QUANTITIES else axis


def _draw_curve(
    axes: Axes, xs: Sequence[float], points: Sequence[CurvePoint], quantity: Quantity, name: str, style: dict[str, Any]
) -> None:
    """Draw the mean, and a band of one deviation on each side within the possible values."""
    factor = scale_of(quantity.unit, []).factor
    ys = [point.score.mean * factor for point in points]
    bands = [(point.score.deviation or 0.0) * factor for point in points]
    every = max(1, len(xs) // 8)
    label = f"{name} (n = {points[0].score.n})"
    axes.plot(xs, ys, label=label, linewidth=1.8, markersize=5, markevery=every, **style)
    if any(bands):
        low = [max(y - band, quantity.low * factor) for y, band in zip(ys, bands, strict=True)]
        high = [min(y + band, quantity.high * factor) for y, band in zip(ys, bands, strict=True)]
        axes.fill_between(xs, low, high, color=style["color"], alpha=0.16, linewidth=0)


def add_legend(figure: Figure, names: int) -> None:
    """Add the legend below the axes."""
    legend = figure.legend(
        loc="outside lower left", ncols=1 if names == 1 else 2, frameon=False, fontsize=10, labelcolor=INK,
        handlelength=3.2,
    )  # fmt: skip
    legend.set_in_layout(True)


def draw_clients(scores: Sequence[ClientScores], groups: Sequence[str], metric: Metric) -> Figure:
    """Draw the scores of the clients: one box and one point for each client and run.

    Args:
        scores: the scores.
        groups: names of the groups, in the order of their colours.
        metric: what the scores are.
    """
    figure, axes = new_figure(0.9 + 0.4 * len(scores))
    factor, unit = (100, " [%]") if metric.unit == "share" else (1, "")
    for number, one in enumerate(scores):
        values = [factor * value for value in one.values]
        style = look(groups.index(one.group))
        axes.boxplot(
            [values], positions=[number], orientation="horizontal", widths=0.5, showfliers=False,
            medianprops={"color": style["color"], "linewidth": 2.4},
            boxprops={"color": QUIET}, whiskerprops={"color": QUIET}, capprops={"color": QUIET},
        )  # fmt: skip
        offsets = [number + 0.14 * ((index % 5) - 2) / 2 for index in range(len(values))]
        axes.plot(values, offsets, linestyle="", marker=style["marker"], markersize=4, alpha=0.55, color=style["color"])
    axes.set_yticks(range(len(scores)), [f"{shorten(one.group)} ({one.source})" for one in scores])
    axes.invert_yaxis()
    axes.set_xlabel(f"{metric.label} of a client{unit}")
    return figure


def draw_timeline(detail: RunDetail) -> Figure | None:
    """Draw what each board did in the last recorded rounds; None without times."""
    rows = [(row.agent, row.outcome, row.place[0], phases) for row in detail.history.latest
            if (phases := reply_phases(row))]  # fmt: skip
    if not rows:
        return None
    boards = sorted({agent for agent, *_ in rows}, key=natural_key)[:MOST_BOARDS]
    start = min(phases.opened for *_, phases in rows)
    figure, axes = new_figure(1.3 + 0.26 * len(boards))
    _draw_bars(axes, boards, start, [(agent, outcome, phases) for agent, outcome, _, phases in rows])
    for number in sorted({number for _, _, number, _ in rows}):
        opened = min(phases.opened for *_, found, phases in rows if found == number) - start
        axes.axvline(opened, color=QUIET, linewidth=0.8, linestyle=":")
        axes.text(opened, -0.75, f" {number}", color=QUIET, fontsize=9, va="bottom")
    axes.set_yticks(range(len(boards)), [shorten(board) for board in boards])
    axes.set_ylim(len(boards) - 0.5, -0.8)
    axes.set_xlabel(f"seconds since round {min(number for _, _, number, _ in rows)} opened")
    axes.grid(visible=False, axis="y")
    add_phases_legend(figure)
    return figure


def _draw_bars(
    axes: Axes, boards: Sequence[str], start: float, replies: Sequence[tuple[str, str, ReplyPhases]]
) -> None:
    place = {board: number for number, board in enumerate(boards)}
    for number in _ORDER:
        _, colour, hatch = PHASES[number]
        for board in boards:
            spans = [_span(phases, number, start) for agent, _, phases in replies if agent == board]
            axes.broken_barh(spans, (place[board] - 0.32, 0.64), facecolor=colour, hatch=hatch, edgecolor=PAPER,
                             linewidth=0)  # fmt: skip
    lost = [(phases.arrived - start, place[agent]) for agent, outcome, phases in replies
            if outcome != "accepted" and agent in place]  # fmt: skip
    if lost:
        axes.plot(*zip(*lost, strict=True), linestyle="", marker="x", color=INK, markersize=6)


def _span(phases: ReplyPhases, number: int, start: float) -> tuple[float, float]:
    """Return begin and length of a phase, in seconds since ``start``."""
    edges = (phases.opened, phases.training, phases.sending, phases.arrived, phases.closed)
    return edges[number] - start, edges[number + 1] - edges[number]


def add_phases_legend(figure: Figure) -> None:
    """Add the legend of the timeline below the axes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Any] = [Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, linewidth=0, label=name)
                       for name, colour, hatch in PHASES]  # fmt: skip
    keys.append(Line2D([], [], linestyle="", marker="x", color=INK, label="not accepted"))
    figure.legend(handles=keys, loc="outside lower left", ncols=5, frameon=False, fontsize=10, labelcolor=INK,
                  handlelength=1.6, columnspacing=1.2)  # fmt: skip


def draw_shares(coverage: Coverage) -> Figure | None:
    """Draw which share of each layer each board trained; None without boards."""
    layers = [layer for layer in coverage.layers if layer.boards][:MOST_LAYERS]
    if not layers:
        return None
    boards = sorted({board for layer in layers for board in layer.boards}, key=natural_key)[:MOST_BOARDS]
    names = [shorten(layer.name) for layer in layers]
    turned = sum(map(len, names)) > 40
    below = 0.08 * max(map(len, names)) if turned else 0.0
    figure, axes = new_figure(max(_LEAST_HEIGHT + below, 1.2 + 0.24 * len(boards)))
    shares = [[100 * layer.boards.get(board, 0.0) for layer in layers] for board in boards]
    image = axes.imshow(shares, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest")
    axes.set_yticks(range(len(boards)), [shorten(board) for board in boards])
    axes.set_xticks(range(len(layers)), names, rotation=90 if turned else 0)
    axes.grid(visible=False)
    _add_colour_bar(figure, axes, image, "mean share of the layer [%]")
    return figure


def _add_colour_bar(figure: Figure, axes: Axes, image: Any, words: str) -> None:
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(words, color=INK, size=10)
    bar.ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)


def draw_coverage(coverage: Coverage) -> Figure | None:
    """Draw how many replies trained each part of each layer; None without layers."""
    layers = [layer for layer in coverage.layers if layer.counts][:MOST_LAYERS]
    if not layers:
        return None
    figure, axes = new_figure(max(_LEAST_HEIGHT, 1.2 + 0.24 * len(layers)))
    image = axes.imshow(
        [_stretch(layer.counts) for layer in layers], aspect="auto", cmap="cividis", vmin=0,
        vmax=max(1, *(max(layer.counts) for layer in layers)), interpolation="nearest",
        extent=(0, 100, len(layers) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(layers)), [shorten(layer.name) for layer in layers])
    axes.set_xlabel("output channels of the layer, in their order [%]")
    axes.grid(visible=False)
    _add_colour_bar(figure, axes, image, "replies that trained it")
    return figure


def _stretch(counts: Sequence[int]) -> list[float]:
    """Return ``_BINS`` values: each the mean over its part of the channels, at least one channel."""
    size = len(counts)
    edges = [(index * size // _BINS, max((index + 1) * size // _BINS, index * size // _BINS + 1))
             for index in range(_BINS)]  # fmt: skip
    return [sum(counts[low:high]) / (high - low) for low, high in edges]


def curve_text(curves: Mapping[str, Sequence[CurvePoint]], quantity: Quantity) -> str:
    """Describe where each curve ends, for those who do not see it."""
    scale = scale_of(quantity.unit, [])
    ends = [
        f"{name}: {points[-1].score.mean * scale.factor:.2f} {scale.symbol}".strip() + f" in round {points[-1].round}"
        for name, points in curves.items() if points
    ]  # fmt: skip
    return "Last points. " + "; ".join(ends)
