"""What a table holds, whether a loader can read it or not: rows, columns, classes."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from fedquilt_common.datasets.files import open_packed, unpacked_path
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.plurals import plural

_DELIMITERS: Final[Mapping[str, str | None]] = {".csv": ",", ".tsv": "\t", ".txt": None, ".json": None}
"""What separates the columns of a table, by how its name ends; None: blanks."""
_LONGEST_LINE: Final = 4 << 20
"""Characters of a line up to which the rows of a table are counted; a file without line ends would fill the memory."""
_CLASS_COLUMNS: Final = ("class", "label", "activity")
_LETTER: Final = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class TableFacts:
    """A table.

    Attributes:
        rows: without the header and empty lines.
        columns: of its first row.
        has_header: whether names of columns come first.
        classes: rows of each class, if a column is named so.
    """

    rows: int
    columns: int
    has_header: bool
    classes: Mapping[str, int] = field(default_factory=dict)


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name, plain or packed."""
    return unpacked_path(path).suffix in _DELIMITERS


def read_table(path: Path) -> TableFacts:
    """Count the rows and classes of a table, plain or packed.

    Raises:
        DataUnavailableError: the file is damaged, cannot be read, or has a line that is too long.
    """
    try:
        with open_packed(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            return _count_rows(_read_lines(text), _DELIMITERS[unpacked_path(path).suffix])
    except (csv.Error, ValueError) as error:
        raise DataUnavailableError(f"{path}: its rows cannot be counted: {error}") from error


def describe_tables(tables: Sequence[TableFacts]) -> tuple[str, dict[str, int]]:
    """Return the rows and columns of one or more tables in words, and the rows of each class in all of them."""
    classes = Counter[str]()
    for table in tables:
        classes.update(table.classes)
    rows, columns = sum(table.rows for table in tables), sorted({table.columns for table in tables})
    header = (" below a header" if len(tables) == 1 else " below headers") if all(t.has_header for t in tables) else ""
    least = f"{columns[0]} to " if len(columns) > 1 else ""
    what = f"{rows:,} {plural('row', rows)}{header}, {least}{columns[-1]} {plural('column', columns[-1])}"
    return what, dict(sorted(classes.items()))


def _read_lines(text: IO[str]) -> Iterator[str]:
    """Read the lines of a file, which may have a single one of gigabytes."""
    while line := text.readline(_LONGEST_LINE):
        if len(line) >= _LONGEST_LINE:
            raise ValueError(f"a line has {_LONGEST_LINE:,} characters or more")
        yield line


def _count_rows(lines: Iterator[str], delimiter: str | None) -> TableFacts:
    split = csv.reader(lines, delimiter=delimiter) if delimiter else (line.split() for line in lines)
    rows = (row for row in split if len(row) > 1 or any(cell.strip() for cell in row))
    first, second = next(rows, []), next(rows, [])
    names = [name.strip().lower() for name in first]
    column = next((names.index(name) for name in _CLASS_COLUMNS if name in names), None)
    has_header = bool(first) and _is_header(first, second, names_class=column is not None, is_text=delimiter is None)
    counts, total = Counter[str](), 0
    for row in itertools.chain([] if has_header else [first], [second], rows):
        total += bool(row)
        if has_header and column is not None and column < len(row):
            counts[row[column]] += 1
    return TableFacts(total, len(first), has_header, counts)


def _is_header(first: Sequence[str], second: Sequence[str], *, names_class: bool, is_text: bool) -> bool:
    """Whether the first row holds names of columns: some may be numbers, such as years.

    Args:
        first: the first row.
        second: the row below it; empty if there is none.
        names_class: whether a cell of the first row is the usual name of the column of classes.
        is_text: blanks separate the columns, so that the first row may be a sentence.
    """
    has_numbers_below = any(
        _LETTER.search(name) and not _is_number(name) and _is_number(cell)
        for name, cell in zip(first, second, strict=False)
    )
    if is_text:
        return names_class and has_numbers_below
    return names_class or has_numbers_below or not any(map(_is_number, first))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
