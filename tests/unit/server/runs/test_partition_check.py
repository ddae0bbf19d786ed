"""A run goes on, is replayed and is audited with the samples with which it began, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.server.runs.test_run_folder import opened

from fedquilt_common.errors import RunFolderError
from fedquilt_server.runs.partition_check import check_partition

OTHERS = "its clients had other samples when the run began"


def test_a_run_that_has_begun_keeps_its_partition(tmp_path: Path) -> None:
    with opened(tmp_path, resume=False) as run:
        run.folder.note_partition("a" * 64)  # nobody has seen it yet
        run.folder.note_partition("b" * 64)
        run.folder.begin()
        run.folder.note_partition("b" * 64)
        with pytest.raises(RunFolderError, match=OTHERS):
            run.folder.note_partition("c" * 64)
        with pytest.raises(RunFolderError, match=OTHERS):
            run.folder.note_partition(None)


def test_a_run_of_an_earlier_version_has_none_recorded(tmp_path: Path) -> None:
    check_partition(tmp_path, None, "a" * 64)
    check_partition(tmp_path, "", None)
