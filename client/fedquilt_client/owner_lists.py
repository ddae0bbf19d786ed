"""Lists that a board's owner reads: as a table or as JSON, then what is damaged."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedquilt_common.error_messages import print_error
from fedquilt_common.errors import RunFolderError
from fedquilt_common.terminal_text import printable

JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def make_table(names: Iterable[str], numbers: Collection[str]) -> Table:
    """Return an empty table.

    Args:
        names: its headings.
        numbers: the headings of columns with numbers.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    return table


def add_texts(table: Table, *cells: str) -> None:
    """Add a row of literal texts: a coordinator chose some of them, such as a run's name."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as JSON."""
    print(json.dumps(rows, indent=2))


def exit_with(damages: Iterable[RunFolderError]) -> NoReturn:
    """End the program after the list, with each damage once on standard error."""
    messages = dict.fromkeys(map(str, damages))
    for message in messages:
        print_error(message)
    raise typer.Exit(RunFolderError.exit_code if messages else 0)
