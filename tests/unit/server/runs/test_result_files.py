"""The result files: writing them takes a small share of the time, and what was left out is written soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedquilt_server.runs import result_files
from fedquilt_server.runs.result_files import ResultFiles
from fedquilt_server.status.results import Result

RESULT: Result = Result.model_construct()


def test_a_round_that_came_too_soon_is_written_when_its_time_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = 0.0, list[float]()

    def write(*_: object) -> None:
        nonlocal now
        written.append(now)
        now += 1.0

    monkeypatch.setattr(result_files, "write_results", write)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    files = ResultFiles(tmp_path, lambda: RESULT, stale=False)
    files.write_due([])
    assert written == []
    files.note_round([])
    files.note_round([])
    assert written == [0.0]
    files.write_due([])
    assert written == [0.0]
    now = due = 1.0 / result_files.SHARE
    files.write_due([])
    now = 2 * due + 2
    files.write_due([])
    assert written == [0.0, due]
