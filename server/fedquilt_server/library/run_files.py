"""Readers of the optional files of a run folder. A row that is damaged is left out, and a note names its line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedquilt_common.rejections import list_problems
from fedquilt_server.history.log_files import read_tail
from fedquilt_server.runs.run_folder import is_in_use
from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.run_event import RunEvent

TAIL_BYTES: Final = 1 << 22
"""How much of a table's end the page of a recorded run reads."""
MOST_NOTES: Final = 3
"""Damaged rows of one file that are named; the others are counted."""
MOST_DAMAGED: Final = 1000
"""Damaged rows of one file that are counted."""
MOST_BYTES: Final = 1 << 28
"""Size above which coverage.json is not read, because it is read as a whole."""
_LARGEST: Final = 1e18
_LONGEST: Final = 200
_LIMITS: Final = {"temperature": (-_LARGEST, _LARGEST), "loss": (-math.inf, math.inf), "accuracy": (0.0, 1.0)}
"""Least and greatest possible values; of the other columns 0 and ``_LARGEST``. A run that diverges has any loss."""


class TelemetrySample(BaseModel):
    """What reports read of a row of ``telemetry.csv``: the state of a board at one time."""

    model_config = ConfigDict(frozen=True)

    time: float
    board: str
    temperature: float | None = None


class BoardRow(BaseModel):
    """What reports read of a row of ``boards.csv``: the latest state of a board."""

    model_config = ConfigDict(frozen=True)

    agent: str
    kind: str = "generic"
    cores: int = 0
    clients: int = 0
    power_source: str = ""
    joules: float | None = None


Row = TypeVar("Row", bound=BaseModel)


def iterate_rows(path: Path, kind: type[Row], notes: list[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file whose first line names the columns; further columns are ignored.

    The file may be larger than the memory, so rows are yielded one by one. A last line without an end is ignored: it is
    being written, or a killed process has left it. Once the run has ended, a note says so.

    Args:
        path: the file; without it there are no rows.
        kind: the model of a row.
        notes: gets a sentence for each of the first damaged rows, and their number.
    """
    yield from _make_rows(path, notes, _csv_lines, partial(_make_row, kind))
    if _is_cut(path) and not is_in_use(path.parent):
        notes.append(f"{path}: its last line has no end, so it is left out; further lines may be missing")


def _is_cut(path: Path) -> bool:
    """Whether the last line of a file has no end."""
    try:
        with path.open("rb") as file:
            return file.seek(0, io.SEEK_END) > 0 and file.seek(-1, io.SEEK_END) >= 0 and file.read(1) != b"\n"
    except OSError:
        return False


def iterate_latest_rows(
    path: Path, kind: type[Row], notes: list[str], without: Container[str] = (), most_bytes: int = TAIL_BYTES
) -> Iterator[Row]:
    """Yield the rows at the end of a CSV file, as ``iterate_rows`` does. A last line without an end is ignored.

    Args:
        path: the file; without it there are no rows.
        kind: the model of a row.
        notes: gets a sentence for each of the first damaged rows, and their number.
        without: columns that are not read.
        most_bytes: how much of the file is read.
    """
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    make = partial(_make_row, kind, without=without)
    yield from _make_rows(path, notes, lambda path: _latest_csv_lines(path, needed, most_bytes), make)


def iterate_latest_events(path: Path, notes: list[str], most_bytes: int = TAIL_BYTES) -> Iterator[RunEvent]:
    """Yield the events at the end of an ``events.jsonl``, oldest first. A last line without an end is ignored.

    Args:
        path: the file; without it there are no events.
        notes: gets a sentence for each of the first damaged lines, and their number.
        most_bytes: how much of the file is read.
    """
    yield from _make_rows(path, notes, lambda path: _latest_lines(path, most_bytes), RunEvent.model_validate_json)


RowCells = Mapping[str, str | None]
"""A line's cells by column; None for one that it lacks, and "" as the column of those that are too many."""
Raw = TypeVar("Raw")


def _make_rows(
    path: Path, notes: list[str], read: Callable[[Path], Iterator[tuple[str, Raw]]], make: Callable[[Raw], Row]
) -> Iterator[Row]:
    """Yield what ``make`` returns for each line; ``read`` yields them with their places."""
    wrong = list[str]()
    try:
        for place, line in read(path) if path.is_file() else ():
            try:
                yield make(line)
            except ValueError as error:
                wrong.append(f"{path}, {place}: {_first_problem(error)}; the line is left out")
                del wrong[MOST_DAMAGED:]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        wrong.insert(0, f"{path}: cannot be read to its end: {error}; its other lines are left out")
    notes += _shorten(wrong, path)


def _csv_lines(path: Path) -> Iterator[tuple[str, RowCells]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader((line for line in file if line.endswith("\n")), restkey="")
        for row in reader:
            yield f"line {reader.line_num}", row


def _latest_csv_lines(path: Path, needed: Sequence[str], most_bytes: int) -> Iterator[tuple[str, RowCells]]:
    with path.open("rb") as file:
        header = file.readline(most_bytes)
    start, text = _complete_tail(path, most_bytes)
    text = text[len(header) :] if start == 0 else text
    names = next(csv.reader([header.decode("utf-8-sig")]), [])
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"it has no column {missing[0]}")
    reader = csv.DictReader(io.StringIO(text.decode(), newline=""), names, restkey="")
    for row in reader:
        yield _place(reader.line_num + (start == 0), start), row


def _latest_lines(path: Path, most_bytes: int) -> Iterator[tuple[str, bytes]]:
    start, text = _complete_tail(path, most_bytes)
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        yield _place(number, start), line


def _complete_tail(path: Path, most_bytes: int) -> tuple[int, bytes]:
    """Return the complete lines at the end of a file, and where in the file they begin."""
    start, text = read_tail(path, most_bytes)
    return start, text[: text.rfind(b"\n") + 1]


def _place(number: int, start: int) -> str:
    """Name a line by its number after byte ``start``."""
    return f"line {number}" if start == 0 else f"line {number} after byte {start}"


def _make_row(kind: type[Row], cells: RowCells, without: Container[str] = ()) -> Row:
    """Return the row of a line's filled cells.

    Raises:
        ValueError: the line has more or fewer cells than the header, or a value is missing or impossible.
    """
    if None in cells.values() or "" in cells:
        raise ValueError("it does not have as many cells as the header")
    row = kind.model_validate({key: value for key, value in cells.items() if value and key not in without})
    for name, value in row.model_dump().items():
        if isinstance(value, int | float) and not _is_possible(name, value):
            raise ValueError(f"{name} is {value:g}, which is impossible")
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ValueError(f"{name} is longer than {_LONGEST} characters")
    return row


def _is_possible(name: str, value: float) -> bool:
    low, high = _LIMITS.get(name, (0.0, _LARGEST))
    return math.isfinite(value) and low <= value <= high


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MOST_BYTES}")


def _first_problem(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problem = list_problems(error)[0]
    value = "" if problem.value is None or isinstance(problem.value, dict) else f" {str(problem.value)[:40]!r}"
    return f"{problem.path}{value}: {problem.why}"


def _shorten(notes: list[str], path: Path) -> list[str]:
    more = len(notes) - MOST_NOTES
    number = f"{more} or more" if len(notes) >= MOST_DAMAGED else str(more)
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"{path}: {number} further lines are damaged and left out"]


def read_coverage(path: Path, notes: list[str]) -> Coverage | None:
    """Read ``coverage.json``; None without the file, or with a note if it is damaged."""
    if not path.is_file():
        return None
    try:
        _check_size(path)
        found = Coverage.model_validate(_mend_latest(json.loads(path.read_bytes())))
        _check_coverage(found)
        return found
    except (OSError, ValueError, RecursionError) as error:
        why = _first_problem(error) if isinstance(error, ValueError) else str(error)
        notes.append(f"{path}: is damaged ({why}); it is left out")
        return None


def _mend_latest(raw: Any) -> Any:
    """Leave out the last round's counts if they are wrong: the file does not need to have them."""
    if not isinstance(raw, dict) or not isinstance(raw.get("layers"), list):
        return raw
    layers = [_mend_layer(layer) if isinstance(layer, dict) else layer for layer in raw["layers"]]
    return {**raw, "layers": layers}


def _mend_layer(layer: dict[str, Any]) -> dict[str, Any]:
    latest, counts = layer.get("latest"), layer.get("counts")
    is_valid = (
        isinstance(latest, list) and isinstance(counts, list) and len(latest) == len(counts)
        and all(type(one) is int and one >= 0 for one in latest)
    )  # fmt: skip
    return layer if is_valid else {**layer, "latest": []}


def _check_coverage(coverage: Coverage) -> None:
    for layer in coverage.layers:
        if min(layer.counts, default=0) < 0 or not all(0 <= share <= 1 for share in layer.boards.values()):
            raise ValueError(f"layer {layer.name[:40]!r} has a count below 0, or a share that is not within 0 and 1")


@dataclass(frozen=True)
class ReplyPhases:
    """When the phases of a reply began and the last one ended, in Unix seconds. A late reply does not wait."""

    opened: float
    training: float
    sending: float
    arrived: float
    closed: float


def reply_phases(row: ReplyRow) -> ReplyPhases | None:
    """Return the phases of a reply; None if a time is unknown or their order is impossible."""
    times = (row.opened_at, row.began_at, row.arrived_at, row.closed_at)
    if row.train_seconds is None or any(time is None for time in times):
        return None
    opened, began, arrived, closed = (time for time in times if time is not None)
    if not opened <= began <= arrived:
        return None
    return ReplyPhases(opened, max(opened, began - row.train_seconds), began, arrived, max(arrived, closed))
