"""A report as one HTML file: styles and charts inside, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from fedquilt_server.report.charts import Chart
from fedquilt_server.report.contents import ONLY_CSV, ReportContents
from fedquilt_server.report.summary import describe_runs
from fedquilt_server.report.svg import to_svg
from fedquilt_server.report.table import ReportTable, headings, texts

_FOLDER = Path(__file__).parent / "templates"
_MOST_ROWS = 400
"""Rows of one table in the page; the CSV file has all of them."""


@dataclass(frozen=True)
class ChartView:
    """A chart for the template; its SVG is markup that ``svg`` made, everything else is text."""

    name: str
    title: str
    text: str
    group: str
    svg: Markup


@dataclass(frozen=True)
class TableView:
    """A table for the template: texts only."""

    name: str
    title: str
    meaning: str
    headings: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[str]]
    meanings: Sequence[tuple[str, str]]
    hidden: int


def to_html(contents: ReportContents, charts: Sequence[Chart]) -> str:
    """Return the page."""
    views = [_chart(chart) for chart in charts]
    return _template().render(
        contents=contents,
        only_csv=ONLY_CSV,
        sentences=describe_runs(contents),
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of this package
        tables={name: _table(table) for name, table in contents.tables.items()},
        charts={kind: [view for view in views if view.name.startswith(kind)] for kind in ("curve", "clients")},
        details={name: [view for view in views if view.group == name] for name in dict.fromkeys(_groups(charts))},
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html")


def _groups(charts: Sequence[Chart]) -> list[str]:
    return [chart.group for chart in charts if chart.group]


def _chart(chart: Chart) -> ChartView:
    svg = to_svg(chart.figure, chart.name)
    return ChartView(chart.name, chart.title, chart.text, chart.group, Markup(svg))  # noqa: S704 - matplotlib escapes its texts


def _table(table: ReportTable) -> TableView:
    rows = list(texts(table))
    meanings = [(column.heading, column.meaning) for column in table.columns if column.meaning]
    numeric = [column.is_number for column in table.columns]
    hidden = max(0, len(rows) - _MOST_ROWS)
    return TableView(
        table.name, table.title, table.meaning, headings(table), numeric, rows[:_MOST_ROWS], meanings, hidden
    )
