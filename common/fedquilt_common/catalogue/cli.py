"""``fedquilt algorithms``, ``models`` and ``datasets``."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from fedquilt_common.catalogue.entries import Entry, EntryField, Kind, find_entry, list_entries
from fedquilt_common.command_app import CommandApp

app = CommandApp()

EntryName = Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)]
JsonList = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_WIDEST: Final = 110


@app.callback()
def group() -> None:
    """List what an experiment can name."""


@app.command()
def algorithms(name: EntryName = None, json_: JsonList = False) -> None:
    """List the algorithms, with their papers and the fields that they add to `algorithm` in an experiment."""
    _show("algorithm", name, json_)


@app.command()
def models(name: EntryName = None, json_: JsonList = False) -> None:
    """List the models, with their papers and the parameters that they add to `model` in an experiment."""
    _show("model", name, json_)


@app.command()
def datasets(name: EntryName = None, json_: JsonList = False) -> None:
    """List the data sets, with their papers; NAME shows the files that one is read from, and its classes."""
    _show("data set", name, json_)


def _show(kind: Kind, name: str | None, as_json: bool) -> None:
    entries = list_entries(kind) if name is None else [find_entry(kind, name)]
    if as_json:
        found = [asdict(entry) for entry in entries]
        typer.echo(json.dumps(found if name is None else found[0], indent=2))
        return
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    for entry in entries:
        typer.echo("\n".join(_short(entry, width) if name is None else _full(entry)))


def _short(entry: Entry, width: int) -> Iterator[str]:
    yield entry.name
    yield from _wrapped(_plain(entry.summary), width)
    if entry.paper:
        yield from _wrapped(f"Paper: {entry.paper}", width)
    if entry.fields:
        yield from _wrapped(f"Fields: {', '.join(map(_field, entry.fields))}", width)


def _full(entry: Entry) -> Iterator[str]:
    yield from (entry.name, "", _plain(entry.description))
    if entry.fields:
        yield from ("", "Fields:")
        yield from (f"    {_field(field)}  ({field.type})" for field in entry.fields)


def _plain(docstring: str) -> str:
    """Return the docstring with single backticks, as in all other output."""
    return docstring.replace("``", "`")


def _field(field: EntryField) -> str:
    return f"{field.name} (required)" if field.required else f"{field.name} = {_yaml(field.default)}"


def _yaml(value: Any) -> str:
    """``value`` as it is written in an experiment file."""
    return json.dumps(value) if not isinstance(value, str) else value


def _wrapped(text: str, width: int) -> list[str]:
    indent = "    "
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def run(arguments: list[str]) -> None:
    """Entry of the three commands."""
    app(arguments, prog_name="fedquilt")
