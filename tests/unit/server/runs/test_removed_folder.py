"""A run folder that somebody removes while the run goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.server.runs.test_run_folder import opened, start

from fedquilt_common.errors import RunFolderError
from fedquilt_server.cli import _end
from fedquilt_server.status.results import Ending
from fedquilt_server.status.snapshot import StatusStore


def test_a_folder_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    """A run folder without its journal would look like one that holds other files."""
    folder = tmp_path / "run"
    lost = "journal.sqlite was removed or replaced while the run went on, so the run is lost"
    with opened(folder, resume=False) as run:
        start(run)
        run.note_alive(200.0)
        shutil.copytree(folder, tmp_path / "copy")
        shutil.rmtree(folder)
        with pytest.raises(RunFolderError, match=lost):
            run.note_alive(201.0)
        with pytest.raises(RunFolderError, match=lost):
            _end(run, StatusStore(), Ending(status="stopped", reason="a signal", exit_code=143))
        assert not folder.exists()
        (tmp_path / "copy").rename(folder)
        with pytest.raises(RunFolderError, match=lost):
            run.note_alive(202.0)
