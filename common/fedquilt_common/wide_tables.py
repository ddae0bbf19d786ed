"""Prints tables to standard output that lose nothing in a narrow terminal."""

from __future__ import annotations

from rich.console import RenderableType

from fedquilt_common.terminal import make_console


def print_whole(table: RenderableType) -> None:
    """Print a table with every character: a narrow terminal wraps its lines, where rich cuts cells."""
    console = make_console()
    console.width = max(console.width, make_console(width=1000).measure(table).maximum)
    console.print(table)
