"""Tables of a report: typed cells with units, and their texts for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fedquilt_server.library.scales import CellKind, Scale, deviation_text, number_text, scale_of
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.status.units import DASH

Cell: TypeAlias = str | int | float | MeanDeviation | None
"""None is an unknown value, which is shown as a dash and never as 0."""
PLUS_MINUS: Final = "\N{PLUS-MINUS SIGN}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: its name in CSV and JSON.
        heading: its name for people, without the unit.
        kind: what its cells are; numbers are in base units: shares, seconds, bytes, joules.
        meaning: its definition; empty if the heading says it all.
    """

    key: str
    heading: str
    kind: CellKind = "text"
    meaning: str = ""

    @property
    def is_number(self) -> bool:
        """Whether its cells are aligned as numbers."""
        return self.kind != "text"


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    Attributes:
        name: its name in file names and JSON.
        title: its heading.
        meaning: what its rows are, over how many runs.
        columns: its columns.
        rows: one cell for each column.
        over: key of the column that counts the runs of a row; a mean over fewer of them shows its n.
    """

    name: str
    title: str
    meaning: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    over: str = "runs"


def column_scales(table: ReportTable) -> list[Scale]:
    """Return the scale of each column."""
    return [
        scale_of(column.kind, [_number(row[index]) for row in table.rows]) for index, column in enumerate(table.columns)
    ]


def _number(cell: Cell) -> float:
    if isinstance(cell, MeanDeviation):
        return cell.mean
    return math.nan if cell is None or isinstance(cell, str) else float(cell)


def headings(table: ReportTable) -> list[str]:
    """Return the headings with their units, such as "time [s]"."""
    scales = column_scales(table)
    return [
        f"{column.heading} [{scale.symbol}]" if scale.symbol else column.heading
        for column, scale in zip(table.columns, scales, strict=True)
    ]


def texts(table: ReportTable) -> Iterator[list[str]]:
    """Yield the rows as texts: "93.42 ± 0.51", "93.42 (n = 1)" for a part of the runs, a dash for what is unknown."""
    scales = column_scales(table)
    place = next((index for index, column in enumerate(table.columns) if column.key == table.over), None)
    for row in table.rows:
        runs = None if place is None else row[place]
        yield [cell_text(cell, scale, runs) for cell, scale in zip(row, scales, strict=True)]


def cell_text(cell: Cell, scale: Scale, runs: Cell = None) -> str:
    """Return a cell as text. ``runs``: the number of values that a mean should have; None for any."""
    if cell is None:
        return DASH
    if isinstance(cell, str):
        return cell
    if isinstance(cell, MeanDeviation):
        part = "" if runs is None or runs == cell.n else f" (n = {cell.n})"
        return f"{_mean_text(cell, scale)}{part}"
    return number_text(cell, scale)


def _mean_text(cell: MeanDeviation, scale: Scale) -> str:
    mean = number_text(cell.mean, scale)
    if cell.deviation is None or not math.isfinite(cell.mean):
        return mean
    return f"{mean} {PLUS_MINUS} {deviation_text(cell.deviation, cell.mean, scale)}"


def flat_columns(table: ReportTable) -> list[str]:
    """Return the column names for CSV: a mean over runs has three columns."""
    return [name for index, column in enumerate(table.columns) for name in _flat_names(table, index, column.key)]


def _flat_names(table: ReportTable, index: int, key: str) -> list[str]:
    return [key, f"{key}_deviation", f"{key}_n"] if _has_mean(table, index) else [key]


def _has_mean(table: ReportTable, index: int) -> bool:
    return any(isinstance(row[index], MeanDeviation) for row in table.rows)


def flat_rows(table: ReportTable) -> Iterator[list[Any]]:
    """Yield the rows for CSV: numbers in base units, with every digit; empty cells for what is unknown."""
    wide = [_has_mean(table, index) for index in range(len(table.columns))]
    for row in table.rows:
        yield [value for cell, three in zip(row, wide, strict=True) for value in _flat_cell(cell, three)]


def _flat_cell(cell: Cell, three: bool) -> list[Any]:
    if isinstance(cell, MeanDeviation):
        return [cell.mean, "" if cell.deviation is None else cell.deviation, cell.n]
    return ["" if cell is None else cell, *(["", ""] if three else [])]
