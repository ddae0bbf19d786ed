"""The charts of a report, in the order of reading."""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_server.library.quantities import QUANTITIES
from fedquilt_server.report.charts import (
    MOST_BOARDS,
    Chart,
    curve_text,
    draw_clients,
    draw_coverage,
    draw_curves,
    draw_shares,
    draw_timeline,
)
from fedquilt_server.report.contents import ReportContents
from fedquilt_server.report.groups import average_curve
from fedquilt_server.status.coverage import Coverage

AXES = ("round", "bytes", "seconds", "joules")


def curve_charts(contents: ReportContents) -> Iterator[Chart]:
    """Yield the learning curves against rounds, bytes, seconds and joules; a cost that is not recorded has none."""
    if contents.score is None:
        return
    quantity = QUANTITIES[contents.score]
    curves = {group.name: average_curve(group, contents.score) for group in contents.groups}
    for axis in AXES:
        figure = draw_curves(curves, axis, contents.score)
        if figure is not None:
            name = "rounds" if axis == "round" else axis
            title = f"{quantity.heading} against {QUANTITIES[axis].heading if axis in QUANTITIES else 'rounds'}"
            yield Chart(f"curve-{name}", title[:1].upper() + title[1:], curve_text(curves, quantity), figure)


def client_charts(contents: ReportContents) -> Iterator[Chart]:
    """Yield the chart of the clients' scores, if any are recorded."""
    if contents.clients:
        title = f"{contents.metric.title} of each client: quartiles as a box, a point for each client and run"
        figure = draw_clients(contents.clients, [group.name for group in contents.groups], contents.metric)
        yield Chart("clients", title, "The table below has the quartiles.", figure)


def detail_charts(contents: ReportContents) -> Iterator[Chart]:
    """Yield timeline and coverage of one run of each group, as far as they are recorded."""
    for number, detail in enumerate(contents.shown, 1):
        where = f"seed {detail.run.seed}"
        boards = _limit(len(detail.history.boards))
        coverage = detail.coverage or Coverage(rounds=0, layers=[])
        drawings = (
            ("timeline", f"Last rounds, {where}{boards}", "The table of the boards has their sums.",
             draw_timeline(detail)),
            ("coverage", f"Coverage, layer by channel, {where}", "The table of the coverage has the counts.",
             draw_coverage(coverage)),
            ("coverage-boards", f"Coverage, board by layer, {where}{boards}", "The CSV files have the shares.",
             draw_shares(coverage)),
        )  # fmt: skip
        for name, title, text, figure in drawings:
            if figure is not None:
                yield Chart(f"{name}-{number}", title, text, figure, detail.group)


def _limit(boards: int) -> str:
    return f" (the first {MOST_BOARDS} of {boards} boards)" if boards > MOST_BOARDS else ""
