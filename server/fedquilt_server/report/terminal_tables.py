"""What ``runs``, ``compare`` and ``report`` print in a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable
from fedquilt_server.library.comparison import Comparison
from fedquilt_server.library.quantities import last_value, pick_score
from fedquilt_server.library.recorded_run import RecordedRun, RecordedStatus, total_cost
from fedquilt_server.library.scales import score_text
from fedquilt_server.report.make_report import WrittenReport
from fedquilt_server.report.run_tables import merge_notes
from fedquilt_server.report.summary import describe_runs
from fedquilt_server.report.table import ReportTable, headings, texts
from fedquilt_server.status.units import DASH, duration, traffic

COLOURS: dict[RecordedStatus, str] = {"finished": "green", "failed": "red", "damaged": "red", "interrupted": "yellow",
                                      "stopped": "yellow", "unknown": "yellow", "running": "cyan"}  # fmt: skip


def print_line(text: str, style: str = "") -> None:
    """Print one line without markup; a long one wraps."""
    make_console().print(plain(text, style), highlight=False, soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """Return a text without markup and without what controls a terminal: boards report some of them."""
    return Text(printable(text), style)


def new_table() -> Table:
    """Return an empty table in the style of all of them."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def print_runs(runs: Sequence[RecordedRun], folder: Path) -> None:
    """Print the list of runs, then why some are not finished."""
    if not runs:
        print_line(f"{folder}: holds no run. Start one with `fedquilt simulate EXPERIMENT`")
        return
    table = new_table()
    table.add_column("run", overflow="fold", min_width=12, ratio=1)
    for name in ("status", "rounds", "score", "time", "bytes", "started"):
        table.add_column(name, justify="left" if name in ("status", "started") else "right", no_wrap=True)
    for run in runs:
        table.add_row(*_run_cells(run))
    make_console().print(table)
    notes = [(run.label, text) for run in runs for text in (run.reason, *run.notes) if text]
    for line in merge_notes(notes, len(runs)):
        print_line(line)


def _run_cells(run: RecordedRun) -> list[Text]:
    score = pick_score([run.rounds])
    seconds, size = total_cost(run, "seconds"), total_cost(run, "bytes")
    done = f"{len(run.rounds)}/{run.planned}" if run.planned else str(len(run.rounds))
    cells = [
        done,
        score_text(score, last_value(run.rounds, score) if score else None),
        duration(seconds),
        traffic(size),
    ]
    rest = [plain(cell) for cell in (*cells, _short_time(run.started))]
    return [plain(run.label), plain(run.status, COLOURS.get(run.status, "")), *rest]


def _short_time(at: float | None) -> str:
    """Return a time in the local zone, without its year."""
    try:
        return DASH if at is None else datetime.fromtimestamp(at).astimezone().strftime("%b %d %H:%M")
    except (OverflowError, ValueError, OSError):
        return DASH


def print_comparison(comparison: Comparison) -> None:
    """Print the results side by side, then the settings that differ."""
    names = [run.label for run in comparison.runs]
    _print_side_by_side("", names, [row.texts() for row in comparison.rows])
    if comparison.differences:
        rows = [[key, *map(str, values)] for key, values in comparison.differences.items()]
        _print_side_by_side("setting", names, rows)
    elif not any(run.settings is None for run in comparison.runs):
        print_line("The experiments are equal.")
    for note in comparison.notes:
        print_line(note)


def _print_side_by_side(heading: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = new_table()
    table.add_column(heading, overflow="fold")
    for name in names:
        table.add_column(plain(name), overflow="fold", justify="right")
    for row in rows:
        table.add_row(*map(plain, row))
    make_console().print(table)
    print_line("")


def print_report_summary(made: WrittenReport) -> None:
    """Print the scores and where the report is."""
    tables, score = made.contents.tables, made.contents.score
    if "scores" in tables:
        finals = [column.key for column in tables["scores"].columns if column.key.startswith("final_")]
        shown = (f"final_{score}", f"best_{score}", f"final_local_{score}") if score else finals
        _print_table(tables["scores"], ("group", "runs", *shown))
    if "target" in tables:
        _print_table(tables["target"], ("group", "runs", "reached", "rounds", "seconds", "bytes", "joules"))
    for line in describe_runs(made.contents)[: 2 if score else 3]:
        print_line(line)
    for note in made.contents.notes:
        print_line(f"Note: {note}")
    if made.files:
        more = f" and {len(made.files) - 1} files beside it" if len(made.files) > 1 else ""
        print_line(f"Wrote {made.files[0]}{more}")


def _print_table(report: ReportTable, keys: Sequence[str]) -> None:
    """Print some columns of a table: all of them would not fit a terminal."""
    print_line(report.title, "bold")
    places = [index for index, column in enumerate(report.columns) if column.key in keys]
    table = new_table()
    for index in places:
        justify: JustifyMethod = "right" if report.columns[index].is_number else "left"
        table.add_column(plain(headings(report)[index]), justify=justify, overflow="fold")
    for row in texts(report):
        table.add_row(*(plain(row[index]) for index in places))
    make_console().print(table)
    print_line("")
