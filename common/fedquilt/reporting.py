"""Make reports of runs from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fedquilt_common.errors import RunFolderError
from fedquilt_server.report.make_report import ReportSettings, WrittenReport, make_report


class HasFolder(Protocol):
    """Something in a folder, such as a ``Run``."""

    @property
    def folder(self) -> Path:
        """Where its files are."""


RunPlace: TypeAlias = str | os.PathLike[str] | HasFolder
"""The folder of a run or a sweep, a folder that holds such folders, or an object with a ``folder``."""


def report(
    runs: RunPlace | Iterable[RunPlace],
    out: str | os.PathLike[str] | None = None,
    format: str = "html",  # noqa: A002 - the same word as the option --format
    *,
    published: str | os.PathLike[str] | None = None,
    target: float | None = None,
) -> WrittenReport:
    """Make a report of runs: mean and deviation over seeds, learning curves, clients, boards and coverage.

    Args:
        runs: one or several folders of runs or sweeps, folders that hold them, or ``Run`` objects.
        out: the folder or file to write. None: the folder ``report``, in the sweep if ``runs`` is one.
        format: "html" (a page, with images and CSV files beside it), "md", "latex" or "csv".
        published: a YAML file with figures of papers; its form is described in docs/reports.md.
        target: the score whose costs are given; None for the highest step of 0.05 that every run reached.

    Returns:
        The numbers in ``contents``, and the written ``files``, the report's own first.

    Raises:
        RunFolderError: a folder is missing or holds no run, or the report cannot be written.
        ExperimentError: the format, the target or the file of published figures is not valid.
        PackageMissingError: matplotlib, which the format "html" requires, is not installed.
    """
    places = [_folder_of(runs)] if _is_place(runs) else [_folder_of(one) for one in _several(runs)]
    if not places:
        raise RunFolderError("report: there is no run; name at least one run folder")
    settings = ReportSettings(
        None if out is None else Path(out), format, None if published is None else Path(published), target
    )
    return make_report(places, settings)


def _is_place(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) or hasattr(value, "folder")


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else [value]


def _folder_of(place: Any) -> Path:
    """Return the folder of a place.

    Raises:
        TypeError: it is neither a path nor has a folder.
    """
    return Path(place.folder if hasattr(place, "folder") else place)
