"""Makes a report of run folders: reads them, averages, writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedquilt_server.report.contents import ReportContents, make_contents
from fedquilt_server.report.published import read_published
from fedquilt_server.report.report_files import check_format, write_report
from fedquilt_server.report.sources import gather_runs
from fedquilt_server.sweep.manifest import holds_sweep


@dataclass(frozen=True)
class WrittenReport:
    """A report and its files.

    Attributes:
        contents: the groups, their numbers and tables.
        files: the written files, the report's own first.
    """

    contents: ReportContents
    files: tuple[Path, ...]


@dataclass(frozen=True)
class ReportSettings:
    """How a report is made.

    Attributes:
        out: folder or file; None for the folder ``report`` in the only named sweep, else in the working folder.
        format: "html", "md", "latex" or "csv".
        published: YAML file with figures of papers; None for those of the sweep alone.
        target: the score whose costs are given; None for the highest step of 0.05 that every run reached.
    """

    out: Path | None = None
    format: str = "html"
    published: Path | None = None
    target: float | None = None


def make_report(places: Sequence[Path], settings: ReportSettings) -> WrittenReport:
    """Make a report of run folders, sweeps, or folders that hold them.

    Raises:
        RunFolderError: a folder is missing or holds no run, or the report cannot be written.
        ExperimentError: a setting or the file of published figures is not valid.
        PackageMissingError: matplotlib, which the format "html" requires, is not installed.
    """
    kind = check_format(settings.format)
    published = read_published(settings.published) if settings.published else []
    contents = make_contents(gather_runs(places), published, settings.target)
    out = settings.out or default_folder(places)
    return WrittenReport(contents, tuple(write_report(contents, out, kind)))


def default_folder(places: Sequence[Path]) -> Path:
    """Return where a report goes if nothing else is given."""
    return places[0] / "report" if len(places) == 1 and holds_sweep(places[0]) else Path("report")
