"""What ``fedquilt data list`` and ``get`` print: tables, lines and progress bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from fedquilt_common.data_tools.get_data import OnFile, ReceivedFile
from fedquilt_common.data_tools.list_data import ListedSet
from fedquilt_common.data_tools.shard_folder import OnShard
from fedquilt_common.downloads.partial import OnBytes
from fedquilt_common.terminal import make_console

_DIGESTS: Final[Mapping[str, str]] = {
    "published": "SHA-256 as published",
    "recorded": "no checksum is published, so its SHA-256 {} is recorded and checked from now on",
    "unknown": "no checksum is published, and this command did not download it, so its contents are not checked",
}
"""What the line of a file has on its contents; {} is the SHA-256."""


@contextmanager
def show_bytes(*, visible: bool) -> Iterator[OnFile]:
    """Show a bar for each download on standard error, if that is a terminal.

    Args:
        visible: False shows nothing.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = make_console(stderr=True)
    with Progress(*columns, console=console, disable=not visible or not console.is_terminal) as progress:

        def begin(what: str) -> OnBytes:
            task = progress.add_task(Text(what).markup, total=None)

            def show(done: int, total: int | None) -> None:
                progress.update(task, completed=done, total=total)

            return show

        yield begin


@contextmanager
def show_files(what: str, *, visible: bool) -> Iterator[OnShard]:
    """Show a bar of finished files on standard error, if that is a terminal.

    Args:
        what: text before the bar.
        visible: False shows nothing.
    """
    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not visible or not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def describe_file(file: ReceivedFile) -> str:
    """Return the line about a complete file."""
    state = "was there" if file.was_there else "downloaded"
    checked = _DIGESTS[file.checksum].format(file.sha256)
    unpacked = f"; unpacked to {file.unpacked}" if file.unpacked else ""
    return f"{file.name}: {state}, {decimal(file.size)}; {checked}{unpacked}"


def draw_sets(sets: Sequence[ListedSet]) -> Table:
    """Draw a row for each data set."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("data set", "task", "size", "state", "get", "licence"):
        is_long = heading in ("state", "licence")
        table.add_column(
            heading, justify="right" if heading == "size" else "left", no_wrap=not is_long, overflow="fold"
        )
    for entry in sets:
        state = entry.state if entry.state != "incomplete" else f"lacks {', '.join(entry.missing)}"
        prepared = ", prepared" if entry.prepared else ""
        size = f"{entry.megabytes:,} MB" if entry.megabytes else "-"
        table.add_row(entry.name, entry.task, size, f"{state}{prepared}", entry.get, Text(entry.licence))
    return table
