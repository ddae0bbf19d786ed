"""``fedquilt memory``: what algorithms keep on this board and never send, for its owner to see and to take away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedquilt_client.cli import default_state
from fedquilt_client.store import Damaged, KeptMemory, kept_memories
from fedquilt_common.errors import DataUnavailableError, ExperimentError, PayloadError, RunFolderError
from fedquilt_common.wire.codec import FileArrays, write_arrays

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
memory_app = typer.Typer(
    no_args_is_help=True,
    help="See and export the private memory of the clients on this board: heads, models, gradients.",
)
app.add_typer(memory_app, name="memory")

StateOption = Annotated[Path | None, typer.Option("--state", help="The agent's state folder.")]
IdOption = Annotated[str | None, typer.Option("--id", help="The agent's name, if it has the default state folder.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Of this run only; see `memory list`.")]


@app.callback()
def group() -> None:
    """Keep ``memory`` a sub-command."""


@memory_app.command("list")
def list_(
    state: StateOption = None,
    id: IdOption = None,
    run: RunOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """The newest private memory of each client and run: of which round, how large, which arrays."""
    damages: list[RunFolderError] = []
    rows = list(_told_of(_found(state, id, run, damages.append), damages.append))
    if json_:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    for damage in damages:
        print(f"fedquilt: {damage}", file=sys.stderr)
    raise typer.Exit(RunFolderError.exit_code if damages else 0)


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("run", "algorithm", "client", "round", "bytes", "arrays"):
        table.add_column(name, justify="right" if name in ("client", "round", "bytes") else "left", no_wrap=True)
    for row in rows:
        names = list(row["arrays"])
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        table.add_row(row["run"], row["algorithm"], str(row["client"]), str(row["round"]), str(row["bytes"]), shown)
    # rich cuts what does not fit; a terminal that is too narrow wraps lines, but keeps every letter
    console = Console()
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)


@memory_app.command()
def export(
    client: Annotated[int, typer.Option(min=0, help="Whose memory.")],
    out: Annotated[Path, typer.Option(help="The file to write, a safetensors container.")],
    state: StateOption = None,
    id: IdOption = None,
    run: RunOption = None,
) -> None:
    """Write a client's newest private memory to a file of its own; its metadata say what it is."""
    damages: list[RunFolderError] = []
    found = [kept for kept in _found(state, id, run, damages.append) if kept.client == client]
    if not found and damages:
        raise damages[0]
    if not found:
        raise DataUnavailableError(f"client {client} has no private memory here; `fedquilt memory list` tells who has")
    if len(found) > 1:
        raise ExperimentError(f"client {client} has private memory of several runs; give --run one of: "
                              f"{', '.join(kept.run for kept in found)}")  # fmt: skip
    if out.exists():
        raise ExperimentError(f"--out {out}: exists already; choose another name, or remove it")
    told = {key: str(value) for key, value in _told(found[0]).items() if key not in ("arrays", "bytes")}
    write_arrays(out, FileArrays(found[0].file), metadata=told)
    print(f"{out}: {len(FileArrays(out))} arrays, {out.stat().st_size} bytes")


def _found(state: Path | None, id: str | None, run: str | None, damaged: Damaged) -> list[KeptMemory]:
    if (state is None) == (id is None):
        raise ExperimentError("give --state FOLDER, or --id NAME for an agent with the default state folder")
    folder = state if state is not None else default_state(str(id))
    if not (folder / "runs").is_dir():
        raise DataUnavailableError(f"{folder}: is no state folder of an agent that has taken part in a run")
    return [kept for kept in kept_memories(folder, damaged) if run in (None, kept.run)]


def _told_of(found: Iterable[KeptMemory], damaged: Damaged) -> Iterator[dict[str, Any]]:
    for kept in found:
        try:
            yield _told(kept)
        except RunFolderError as error:
            damaged(error)


def _told(kept: KeptMemory) -> dict[str, Any]:
    """Raises RunFolderError for a file that is damaged."""
    try:
        arrays = FileArrays(kept.file)
    except (PayloadError, OSError) as error:
        raise RunFolderError(f"{kept.file}, of client {kept.client}: is damaged or missing: {error}") from None
    return {
        "run": kept.run,
        "algorithm": kept.algorithm,
        "client": kept.client,
        "round": kept.round,
        "bytes": kept.file.stat().st_size,
        "arrays": {name: list(arrays.shape(name)) for name in arrays},
    }


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt memory``."""
    app(arguments, prog_name="fedquilt")
