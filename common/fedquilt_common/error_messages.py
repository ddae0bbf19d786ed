"""How the command line prints the message of an error, and finds it again in what a command printed."""

from __future__ import annotations

import sys
from typing import Final

from fedquilt_common.terminal_text import printable

PREFIX: Final = "fedquilt: "
"""The line of an error begins with it."""
AGAIN: Final = "run the same command again"
"""What to do about a command that ended too early."""
RESUME: Final = f"{AGAIN} to resume (`fedquilt coordinator` with --resume)"
"""What to do about a run that ended before its last round."""
_KEPT: Final = "\n\t"


def print_error(message: object) -> None:
    """Print the message of an error to standard error, without what controls a terminal: an agent may report it."""
    print(f"{PREFIX}{printable(str(message), _KEPT)}", file=sys.stderr)


def last_error(text: str) -> str:
    """Return the last error that a command printed, up to the end of the text; empty if there is none.

    Args:
        text: what the command wrote to standard error, or the end of its log.
    """
    _, found, message = f"\n{text}".rpartition(f"\n{PREFIX}")
    return message.strip() if found else ""
