"""Writes a report: the page with images and tables beside it, or one of the text formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from fedquilt_common.errors import ExperimentError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_server.report.charts import Chart, require_matplotlib
from fedquilt_server.report.contents import ReportContents
from fedquilt_server.report.text_formats import to_csv, to_latex, to_markdown

ReportFormat = Literal["html", "md", "latex", "csv"]
FORMATS: Final[tuple[ReportFormat, ...]] = get_args(ReportFormat)
SUFFIXES: Final[dict[ReportFormat, str]] = {"html": ".html", "md": ".md", "latex": ".tex", "csv": ".csv"}


def check_format(name: str) -> ReportFormat:
    """Return the format of a name, such as "html".

    Raises:
        ExperimentError: there is no such format.
        PackageMissingError: matplotlib, which the charts of "html" require, is not installed.
    """
    known = next((one for one in FORMATS if one == name), None)
    if known is None:
        raise ExperimentError(f"--format {name}: choose one of {', '.join(FORMATS)}")
    if known == "html":
        require_matplotlib()
    return known


def main_file(out: Path, kind: ReportFormat) -> Path:
    """Return the report's own file: ``out`` if it has the format's suffix, else ``report`` in the folder ``out``."""
    suffix = SUFFIXES[kind]
    return out if out.suffix.lower() == suffix and not out.is_dir() else out / f"report{suffix}"


def write_report(contents: ReportContents, out: Path, kind: ReportFormat) -> list[Path]:
    """Write a report; files of an earlier one with the same names are replaced.

    Args:
        contents: the report.
        out: a folder, or a file with the suffix of the format.
        kind: the format.

    Returns:
        The written files, the report's own first.

    Raises:
        ExperimentError: ``out`` is a file of another format.
        RunFolderError: the files cannot be written.
    """
    file = main_file(out, kind)
    if out.is_file() and file != out:
        raise ExperimentError(f"--out {out}: is a file without the suffix {SUFFIXES[kind]}; name a folder")
    with report_disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        return list(_write(contents, file, kind))


def _write(contents: ReportContents, file: Path, kind: ReportFormat) -> Iterator[Path]:
    if kind == "html":
        yield from _write_page(contents, file)
    elif kind != "csv":
        _write_text(file, to_markdown(contents) if kind == "md" else to_latex(contents))
        yield file
    if kind in ("html", "csv"):
        yield from _write_tables(contents, file)


def _write_page(contents: ReportContents, file: Path) -> Iterator[Path]:
    from fedquilt_server.report.html import to_html
    from fedquilt_server.report.svg import to_png

    charts = draw_charts(contents)
    _write_text(file, to_html(contents, charts))
    yield file
    for chart in charts:
        image = _beside(file, chart.name, ".png")
        image.write_bytes(to_png(chart.figure))
        yield image


def draw_charts(contents: ReportContents) -> Sequence[Chart]:
    """Draw all charts of a report."""
    from fedquilt_server.report.chart_list import client_charts, curve_charts, detail_charts

    return [*curve_charts(contents), *client_charts(contents), *detail_charts(contents)]


def _write_tables(contents: ReportContents, file: Path) -> Iterator[Path]:
    for name, table in contents.tables.items():
        path = _beside(file, name, ".csv")
        _write_text(path, to_csv(table))
        yield path


def _write_text(file: Path, text: str) -> None:
    """Write a text in which names of folders may have bytes that are not UTF-8; each becomes a question mark."""
    write_atomically(file, text.encode("utf-8", "replace").decode("utf-8"))


def _beside(file: Path, name: str, suffix: str) -> Path:
    return file.with_name(f"{file.stem}-{name}{suffix}")
