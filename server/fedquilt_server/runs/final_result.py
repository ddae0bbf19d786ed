"""The ``result.json`` of a finished run, and how it comes back if it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_server.runs.run_folder import inspect_folder
from fedquilt_server.status.results import FORMAT, OwnMemory, Result
from fedquilt_server.status.run_file_names import RESULT


class _Ended(BaseModel):
    """How a run ended; earlier versions did not write it. A sweep reads it of each run, so it leaves the rounds out."""

    format: int = FORMAT
    status: str = "unknown"


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run and its ``result.json``, which the same command writes again if it is lost.

    Raises:
        RunFolderError: the journal is damaged, or has lost the run.
    """
    return inspect_folder(folder).finished and not _lacks_final_result(folder / RESULT)


def _lacks_final_result(path: Path) -> bool:
    """Whether ``result.json`` is missing, damaged or not that of a finished run; one of a newer version is not."""
    try:
        found = _Ended.model_validate_json(path.read_bytes())
    except ValidationError:
        return True
    except OSError:
        return not path.exists()
    return found.format <= FORMAT and found.status not in ("finished", "unknown")


def restore_result(folder: Path, make: Callable[[], Result]) -> None:
    """Write the ``result.json`` of a finished run again if it is lost or damaged, without the coordinator's memory.

    Args:
        folder: the run's folder.
        make: returns the content, with the memory of this process.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    if not _lacks_final_result(folder / RESULT):
        return
    with report_run_errors(folder / RESULT):
        restored = make().model_copy(update={"coordinator_memory": OwnMemory()})
        write_atomically(folder / RESULT, restored.model_dump_json(indent=2) + "\n")
