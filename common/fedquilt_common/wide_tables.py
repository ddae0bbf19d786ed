"""Prints tables to standard output that lose nothing in a narrow terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType


def print_whole(table: RenderableType) -> None:
    """Print a table with every character: a narrow terminal wraps its lines, where rich cuts cells."""
    console = Console()
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)
