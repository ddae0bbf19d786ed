"""The typer application of a command, or of a group of commands, with help texts that fit every terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])
_PREFORMATTED: Final = re.compile(r"\s|[-*] |[0-9]+\. |```")
"""How a line begins in a list, or in a block of code."""


class CommandApp(typer.Typer):
    """A typer application without completion, which joins the lines of its commands' docstrings for ``--help``.

    Args:
        options: those of ``typer.Typer``; by default, a command without arguments prints its help.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{
            "add_completion": False, "no_args_is_help": True, "pretty_exceptions_enable": False, **options,
        })  # fmt: skip

    def command(self, name: str | None = None, **options: Any) -> Callable[[CommandFunction], CommandFunction]:
        """Register a command; ``options`` as for ``typer.Typer.command``."""
        return super().command(name, **{"cls": _JoinedHelp, **options})


class _JoinedHelp(TyperCommand):
    """A command with its help in paragraphs: rich breaks their lines, and would keep those of the docstring as well.

    With typer's ``rich_markup_mode="markdown"``, backticks and words such as ``<agent>`` would be lost.
    """

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:  # noqa: A002
        super().__init__(name, help=None if help is None else join_lines(help), **options)


def join_lines(text: str) -> str:
    """Return a text with each paragraph in one line. Lists and blocks of code keep their lines.

    Args:
        text: its paragraphs have an empty line between them. One of which a line is indented, or begins as an item
            of a list or a fence, is a list or a block of code.
    """
    return "\n\n".join(map(_join_paragraph, text.split("\n\n")))


def _join_paragraph(paragraph: str) -> str:
    lines = paragraph.splitlines()
    return paragraph if any(map(_PREFORMATTED.match, lines)) else " ".join(lines)
