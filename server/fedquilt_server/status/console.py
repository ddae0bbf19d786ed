"""Where programs print: a standard error that may go away, and tables that no terminal cuts."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import IO, Final, TextIO, cast

from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable


class StandardError(io.TextIOBase):
    """Writes to standard error until its reader is gone: a run continues without its terminal or its pipe.

    It looks up ``sys.stderr`` at each write, because a live display replaces it.
    """

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of standard error."""
        return getattr(_standard_error(), "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if (stream := _standard_error()) is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        if (stream := _standard_error()) is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    def __del__(self) -> None:
        """Flush nothing at the interpreter's end, when this module's functions may be gone."""

    def isatty(self) -> bool:
        """Whether a person may be reading."""
        stream = _standard_error()
        return stream is not None and not stream.closed and stream.isatty()


def _standard_error() -> TextIO | None:
    """Return standard error itself, even while rich has put its own stream in its place; None if it was closed."""
    return cast("TextIO | None", getattr(sys.stderr, "rich_proxied_file", sys.stderr))


STANDARD_ERROR: Final = StandardError()
ERROR_CONSOLE: Final = make_console(file=cast("IO[str]", STANDARD_ERROR))
"""Console for messages and progress."""


def print_message(text: str) -> None:
    """Print one line to standard error, so that a pipe reads only the data on standard output."""
    ERROR_CONSOLE.print(printable(text, "\n\t"), highlight=False, markup=False, soft_wrap=True)
