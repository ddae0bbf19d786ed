"""Targets: run folders and published figures, as ``fedquilt runs``, ``compare``, ``report`` and ``page`` read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.recorded_runs import write_boards, write_run

from fedquilt_common.errors import ExperimentError
from fedquilt_server.library.comparison import compare_runs, comparison_json
from fedquilt_server.library.run_list import run_json
from fedquilt_server.library.run_snapshot import read_snapshot
from fedquilt_server.report.contents import make_contents
from fedquilt_server.report.html import to_html
from fedquilt_server.report.published import read_published
from fedquilt_server.report.sources import gather_runs
from fedquilt_server.report.table import flat_rows
from fedquilt_server.report.text_formats import to_json, to_latex, to_markdown
from fedquilt_server.status.problems import worst_problem
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.frames import FrameSource
from fedquilt_server.web.quilt import thin_coverage

_STORE = StatusStore()
_SHOWN = FrameSource(_STORE, in_library=True)
FILES = (
    "result.json", "experiment.yaml", "replies.csv", "telemetry.csv", "events.jsonl", "coverage.json", "boards.csv",
)  # fmt: skip


def read_run_folder(data: bytes, folder: Path) -> None:
    """Report a whole run beside one in which a file is other, and show that one. It is never an error.

    The first line of the input is the name of the file.
    """
    whole, other = folder / "whole", folder / "other"
    for place in (whole, other):
        if not place.exists():
            write_boards(write_run(place, run=place.name), {"pi-2": [0], "pi-10": [1, 2]}, 2)
    first, _, content = data.partition(b"\n")
    name = next((one for one in FILES if one.encode() == first.strip()), FILES[len(first) % len(FILES)])
    (other / name).write_bytes(content)
    try:
        _use_everything([whole, other])
        _show(other)
    finally:
        (other / name).unlink()
        if (whole / name).exists():
            shutil.copyfile(whole / name, other / name)


def _use_everything(folders: Sequence[Path]) -> None:
    sources = gather_runs(folders)
    contents = make_contents(sources)
    for text in (to_markdown(contents), to_latex(contents), to_html(contents, [])):
        text.encode()
    plain = [to_json(contents), comparison_json(compare_runs(sources.runs, 0.5)), *map(run_json, sources.runs)]
    json.dumps(plain, allow_nan=False)
    assert all(list(flat_rows(table)) for table in contents.tables.values())


def _show(folder: Path) -> None:
    """Show a run on its page and in the API; the page was open and showed another run."""
    before = _SHOWN.current()
    _STORE.replace(read_snapshot(folder))
    _SHOWN.page().encode()
    _SHOWN.encode(before, _SHOWN.current())
    _STORE.current.model_dump_json().encode()
    worst_problem(_STORE.current).encode()
    if _STORE.current.coverage:
        thin_coverage(_STORE.current.coverage, 128).model_dump_json()


def read_figures(data: bytes, folder: Path) -> None:
    """Read published figures."""
    (folder / "paper.yaml").write_bytes(data)
    read_published(folder / "paper.yaml")


TARGETS = {
    "run-folders": (read_run_folder, (), 8192),
    "published": (read_figures, (ExperimentError,), 4096),
}
