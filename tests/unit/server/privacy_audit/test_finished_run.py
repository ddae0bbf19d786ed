"""The error of ``fedquilt memory`` is that of the audit which runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_server.privacy_audit.finished_run import _run_memory


@pytest.mark.parametrize(
    ("command", "reason"), [("list", "is not the state folder"), ("no-such-command", "No such command")]
)
def test_what_the_command_prints_is_the_reason(command: str, reason: str, tmp_path: Path) -> None:
    """An error of the command line does not begin as others do."""
    with pytest.raises(RunFolderError) as raised:
        _run_memory(command, tmp_path / "absent", "run-1")
    assert reason in str(raised.value)
    assert "fedquilt: " not in str(raised.value)
