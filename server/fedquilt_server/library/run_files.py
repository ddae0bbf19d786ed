"""Readers of the optional files of a run folder. A row that is damaged is left out, and a note names its line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.reply_row import ReplyRow

REPLIES: Final = "replies.csv"
TELEMETRY: Final = "telemetry.csv"
COVERAGE: Final = "coverage.json"
MOST_NOTES: Final = 3
"""Damaged rows of one file that are named; the others are counted."""
MOST_DAMAGED: Final = 1000
"""Damaged rows of one file that are counted."""
MOST_BYTES: Final = 1 << 28
"""Size above which coverage.json is not read, because it is read as a whole."""
_LARGEST: Final = 1e18
_LONGEST: Final = 200
_SIGNED: Final = frozenset({"temperature", "loss"})
_SHARES: Final = frozenset({"accuracy"})


class TelemetrySample(BaseModel):
    """One row of ``telemetry.csv``: the state of a board at one time. ``joules`` is a running sum."""

    model_config = ConfigDict(frozen=True)

    time: float
    board: str
    temperature: float | None = None
    power: float | None = None
    joules: float | None = None


Row = TypeVar("Row", bound=BaseModel)


def iterate_rows(path: Path, kind: type[Row], notes: list[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file whose first line names the columns; further columns are ignored.

    The file may be larger than the memory, so rows are yielded one by one.

    Args:
        path: the file; without it there are no rows.
        kind: the model of a row.
        notes: gets a sentence for each of the first damaged rows, and their number.
    """
    wrong = list[str]()
    try:
        for line, cells in _csv_lines(path) if path.is_file() else ():
            try:
                yield _make_row(kind, cells)
            except ValueError as error:
                wrong.append(f"{path}, line {line}: {_first_problem(error)}; the line is left out")
                del wrong[MOST_DAMAGED:]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        wrong.insert(0, f"{path}: cannot be read to its end: {error}; its other lines are left out")
    notes += _shorten(wrong, path)


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="", restval="")
        for row in reader:
            yield reader.line_num, {key: value for key, value in row.items() if key and value}


def _make_row(kind: type[Row], cells: dict[str, str]) -> Row:
    """Return the row of a line's filled cells.

    Raises:
        ValueError: a value is missing or impossible.
    """
    row = kind.model_validate(cells)
    for name, value in row.model_dump().items():
        if isinstance(value, int | float) and not _is_possible(name, value):
            raise ValueError(f"{name} is {value:g}, which is impossible")
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ValueError(f"{name} is longer than {_LONGEST} characters")
    return row


def _is_possible(name: str, value: float) -> bool:
    low, high = -_LARGEST if name in _SIGNED else 0.0, 1.0 if name in _SHARES else _LARGEST
    return math.isfinite(value) and low <= value <= high


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MOST_BYTES}")


def _first_problem(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    value = "" if isinstance(first["input"], dict) else f" {str(first['input'])[:40]!r}"
    return f"{'.'.join(map(str, first['loc']))}{value}: {first['msg']}"


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
        found = Coverage.model_validate(_without_latest(json.loads(path.read_bytes())))
        _check_coverage(found)
        return found
    except (OSError, ValueError, RecursionError) as error:
        why = _first_problem(error) if isinstance(error, ValueError) else str(error)
        notes.append(f"{path}: is damaged ({why}); it is left out")
        return None


def _without_latest(raw: Any) -> Any:
    """Leave out the last round's counts, which the file does not need to have."""
    if not isinstance(raw, dict) or not isinstance(raw.get("layers"), list):
        return raw
    layers = [{**layer, "latest": []} if isinstance(layer, dict) else layer for layer in raw["layers"]]
    return {**raw, "layers": layers}


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
