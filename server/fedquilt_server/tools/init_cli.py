"""``fedquilt init``: a commented experiment to start from."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.topics import NAME_PATTERN

app = CommandApp()


@app.callback()
def group() -> None:
    """Keep ``init`` a sub-command."""


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the experiment; the file is NAME.yaml in the current folder.")],
) -> None:
    """Write a commented experiment that runs as it is: digits, four clients, FedAvg, five rounds.

    An existing file is never overwritten.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ExperimentError(
            f"name {name!r}: use 1 to 64 letters, digits, '.', '_' and '-', starting with a letter or a digit"
        )
    file = Path(f"{name}.yaml")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(starter_text(name))
    except FileExistsError:
        raise ExperimentError(f"{file}: exists already; choose another name, or remove the file") from None
    typer.echo(f"Wrote {file}. Change what you like, then run:\n  fedquilt simulate {file}")


def starter_text(name: str) -> str:
    """Return the starter experiment under the given name, as YAML with comments."""
    text = resources.files("fedquilt_server").joinpath("starter.yaml").read_text(encoding="utf-8")
    line = "name: starter  "
    renamed = text.replace(line, f"name: {name}".ljust(len(line) - 2) + "  ")
    return renamed.replace("simulate starter.yaml", f"simulate {name}.yaml")


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt init``."""
    app(arguments, prog_name="fedquilt")
