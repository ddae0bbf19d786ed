"""The file that marks a run folder whose run has begun: an empty journal beside it is a lost journal, not a new one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import write_atomically, write_durably

_NAME: Final = "begun.json"


@dataclass(frozen=True)
class BegunMark:
    """What is known of a run besides its journal.

    Attributes:
        run: identifier of the run.
        epoch: number of the coordinator's last start.
        round: a finished round; the journal may have later ones.
    """

    run: str
    epoch: int
    round: int


def mark_path(folder: Path) -> Path:
    """Return the path of the mark, whether it exists or not."""
    return folder / _NAME


def write_mark(folder: Path, mark: BegunMark, *, durable: bool) -> None:
    """Replace the mark; ``durable`` waits until it is on the disk.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    fields = asdict(mark)
    text = json.dumps({**fields, "digest": _digest(fields)}) + "\n"
    with report_run_errors(mark_path(folder)):
        (write_durably if durable else write_atomically)(mark_path(folder), text)


def read_mark(folder: Path) -> BegunMark | None:
    """Return the mark; None if it is missing or damaged."""
    try:
        fields: dict[str, Any] = json.loads(mark_path(folder).read_bytes())
        digest = fields.pop("digest")
        return BegunMark(**fields) if digest == _digest(fields) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check_mark(folder: Path, journal: Path, run: str | None, round: int) -> None:
    """Compare the mark, if there is one, with the journal.

    Args:
        run: identifier of the journal's run; None if the journal is missing or has none.
        round: the last round that the journal has finished.

    Raises:
        RunFolderError: the journal has lost the run or rounds of it, or belongs to another run.
    """
    mark = read_mark(folder)
    remedy = f"Restore {journal} from a backup, or start again with another --out"
    if run is None and mark_path(folder).exists():
        raise RunFolderError(
            f"{journal} is missing or empty, but {mark_path(folder)} shows that a run had begun. {remedy}"
        )
    if mark is None or run is None:
        return
    if mark.run != run:
        raise RunFolderError(f"{journal} holds the run {run}, but {mark_path(folder)} names {mark.run}. {remedy}")
    if mark.round > round:
        raise RunFolderError(
            f"{journal} has lost what followed round {round}: {mark_path(folder)} shows that round {mark.round} was "
            f"finished. {remedy}"
        )


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
