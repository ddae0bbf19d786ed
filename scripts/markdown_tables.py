"""Tables and code of Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield an empty line and a Markdown table without its empty columns; nothing if there are no rows."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    filled = [number for number in range(len(header)) if any(line[number] for line in lines)]
    if lines:
        yield from ("", _row(header, filled), "|---" * len(filled) + "|", *(_row(line, filled) for line in lines))


def _row(cells: Sequence[str], columns: Iterable[int]) -> str:
    return "| " + " | ".join(cells[column] or " " for column in columns) + " |"


def code(value: Any) -> str:
    """Return a value as code, as one writes it in YAML."""
    words = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return f"`{words[value]}`"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, dict):
        return "`{" + ", ".join(f"{key}: {one}" for key, one in value.items()) + "}`"
    return f"`{value}`" if value != "" else "empty"


def sentence(words: str) -> str:
    """Return words with a capital letter, unless they begin with code."""
    return words[:1].upper() + words[1:]
