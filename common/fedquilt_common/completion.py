"""Shell completion of ``fedquilt``, although each sub-command is imported only when it is named.

Typer prints the scripts and the suggestions. The first word is completed from the table of commands; what follows, by
the one module that has the command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer

SHELLS: Final = ("bash", "zsh", "fish", "powershell", "pwsh")


def complete(
    arguments: list[str], variable: str, summaries: Mapping[str, str], load: Callable[[str], typer.Typer]
) -> None:
    """Print suggestions or a shell's script, or install the script; then leave by SystemExit.

    Args:
        arguments: ``--install-completion`` or ``--show-completion [SHELL]``; none while the shell asks for suggestions.
        variable: the environment variable that the shell's script sets.
        summaries: each command's name and its one line of help.
        load: imports the typer application that has a command.
    """
    app = _command_names(summaries)
    typer.main.get_command(app)  # registers the shells with typer
    if arguments[:1] == ["--show-completion"] and arguments[1:] and arguments[1] in SHELLS:
        os.environ[variable], arguments = f"source_{arguments[1]}", []
    elif (command := _typed_command()) in summaries:
        app = load(command)
    app(arguments, prog_name="fedquilt", complete_var=variable)


def _typed_command() -> str:
    """The sub-command on the line that the shell completes; "" while it is being typed."""
    if "COMP_WORDS" in os.environ:  # bash
        words, cursor = os.environ["COMP_WORDS"].split(), int(os.environ.get("COMP_CWORD", "0"))
    else:
        line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
        words = line.split()
        cursor = len(words) - (0 if line.endswith(" ") else 1)
    return words[1] if cursor > 1 and len(words) > 1 else ""


def _command_names(summaries: Mapping[str, str]) -> typer.Typer:
    """An application with the names of all commands and nothing behind them."""
    app = typer.Typer(add_completion=True, pretty_exceptions_enable=False)
    app.callback()(_top)
    for name, summary in summaries.items():
        app.command(name, help=summary)(_nothing)
    return app


def _top(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    """The top level, for completion alone."""


def _nothing() -> None:
    """Stand for a command that is not imported."""
