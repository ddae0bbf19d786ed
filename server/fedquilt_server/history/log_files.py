"""Files of a run folder to which lines are only appended: ``replies.csv``, ``telemetry.csv``, ``events.jsonl``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_server.status.run_event import RunEvent

_TAIL_BYTES: Final = 1 << 20


def csv_text(rows: Iterable[BaseModel], columns: Sequence[str]) -> str:
    """Return the rows as CSV without a header; an unknown value is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    for row in rows:
        writer.writerow(row.model_dump())
    return text.getvalue()


class AppendedCsv:
    """A CSV file with one line for each record of one kind."""

    def __init__(self, path: Path, kind: type[BaseModel]) -> None:
        self.path, self._columns = path, list(kind.model_fields)

    def write(self, rows: Iterable[BaseModel]) -> None:
        """Replace the file.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        with report_run_errors(self.path):
            write_atomically(self.path, ",".join(self._columns) + "\n" + csv_text(rows, self._columns))

    def append(self, rows: Sequence[BaseModel]) -> None:
        """Append rows to the file, which is created if it is missing; call ``repair`` after a crash.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        if rows:
            with report_run_errors(self.path):
                if not self.path.exists():
                    self.write([])
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(csv_text(rows, self._columns))

    def repair(self) -> None:
        """Remove an incomplete last line, as a killed process leaves it.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        cut_incomplete_line(self.path)


class EventFile:
    """``events.jsonl``: one event in each line.

    Attributes:
        last_seq: the greatest number of a journal's event in the file.
        latest: the last events, oldest first.
    """

    def __init__(self, path: Path, keep: int, *, fresh: bool) -> None:
        self._path = path
        if fresh:
            with report_run_errors(path):
                path.unlink(missing_ok=True)
        cut_incomplete_line(path)
        end = _read_end(path)
        self.last_seq = max((event.seq for event in end if event.seq is not None), default=0)
        self._last_kinds = {event.kind for event in end if event.seq == self.last_seq}
        self.latest, self._keep = end[-keep:], keep

    def add(self, event: RunEvent) -> bool:
        """Append an event, unless the file has it already; returns whether it was new.

        Several kinds may have the number of one of the journal's events.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        if event.seq is not None:
            if event.seq > self.last_seq:
                self.last_seq, self._last_kinds = event.seq, set()
            if event.seq < self.last_seq or event.kind in self._last_kinds:
                return False
            self._last_kinds.add(event.kind)
        self.latest = [*self.latest, event][-self._keep :]
        with report_run_errors(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")
        return True


def cut_incomplete_line(path: Path) -> None:
    """Cut a text file after its last complete line.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    with report_run_errors(path):
        if not path.exists():
            return
        with path.open("r+b") as file:
            size = file.seek(0, io.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            complete = file.read().rfind(b"\n") + 1
            if start + complete < size:
                file.truncate(start + complete)


def read_events(path: Path, most: int = _TAIL_BYTES) -> list[RunEvent]:
    """Return the events in the last ``most`` bytes of an ``events.jsonl``, oldest first. Damaged lines are skipped.

    Raises:
        RunFolderError: the file cannot be read.
    """
    if not path.exists():
        return []
    with report_run_errors(path):
        _, text = read_tail(path, most)
    return [event for event in map(_parse, text.splitlines()) if event is not None]


def read_tail(path: Path, most: int) -> tuple[int, bytes]:
    """Return the lines within the last ``most`` bytes of a text file, and where in the file they begin.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, io.SEEK_END) - most)
        file.seek(start)
        text = file.read(most)
    cut = text.find(b"\n") + 1 or len(text)
    return (start + cut, text[cut:]) if start else (0, text)


def _read_end(path: Path) -> list[RunEvent]:
    """Return the events at the end of an ``events.jsonl``, oldest first, with one that has a number if there is one.

    Events without a number, such as notices, may fill the file's end.

    Raises:
        RunFolderError: the file cannot be read.
    """
    most, size = _TAIL_BYTES, path.stat().st_size if path.exists() else 0
    while True:
        found = read_events(path, most)
        if most >= size or any(event.seq is not None for event in found):
            return found
        most *= 4


def _parse(line: bytes) -> RunEvent | None:
    try:
        return RunEvent.model_validate_json(line)
    except ValidationError:
        return None
