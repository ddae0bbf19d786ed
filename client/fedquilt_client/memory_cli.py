"""``fedquilt memory``: list and export the private memory that algorithms keep on this board and never send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fedquilt_client.kept_memories import Damaged, KeptMemory, kept_memories
from fedquilt_client.owner_lists import JsonOption, add_texts, exit_with, make_table, print_json
from fedquilt_client.settings import default_state
from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, PayloadError, RunFolderError
from fedquilt_common.private_memory import algorithm_arrays
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.wide_tables import print_whole
from fedquilt_common.wire.codec import FileArrays, write_arrays

app = CommandApp()
memory_app = CommandApp(
    help="See and export the private memory of the clients on this board: heads, models, gradients.",
)
app.add_typer(memory_app, name="memory")

StateOption = Annotated[Path | None, typer.Option("--state", help="The agent's state folder.")]
IdOption = Annotated[str | None, typer.Option("--id", help="The agent's name, if it uses the default state folder.")]
RunOption = Annotated[str | None, typer.Option("--run", help="This run only; `fedquilt memory list` prints the names.")]


@app.callback()
def group() -> None:
    """Keep ``memory`` a sub-command."""


@memory_app.command("list")
def list_(
    state: StateOption = None,
    id: IdOption = None,
    run: RunOption = None,
    json_: JsonOption = False,
) -> None:
    """List the newest private memory of each client and run: its round, its size and its arrays."""
    damages: list[RunFolderError] = []
    rows = list(_describe_all(_find_memories(state, id, run, damages.append), damages.append))
    if json_:
        print_json(rows)
    else:
        _print(rows)
    exit_with(damages)


def _print(rows: list[dict[str, Any]]) -> None:
    table = make_table(("run", "algorithm", "client", "round", "bytes", "arrays"), ("client", "round", "bytes"))
    for row in rows:
        names = list(row["arrays"])
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        add_texts(table, row["run"], row["algorithm"], str(row["client"]), str(row["round"]), str(row["bytes"]), shown)
    print_whole(table)


@memory_app.command()
def export(
    client: Annotated[int, typer.Option(min=0, help="The client whose memory to export.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    state: StateOption = None,
    id: IdOption = None,
    run: RunOption = None,
) -> None:
    """Write a client's newest private memory to a file; its metadata name run, algorithm, client and round."""
    damages: list[RunFolderError] = []
    memories = [memory for memory in _find_memories(state, id, run, damages.append) if memory.client == client]
    if not memories and damages:
        raise damages[0]
    if not memories:
        raise ExperimentError(
            f"client {client} has no private memory here; `fedquilt memory list` prints the clients that have one"
        )
    if len(memories) > 1:
        raise ExperimentError(f"client {client} has private memory of several runs; give --run one of: "
                              f"{', '.join(memory.run for memory in memories)}")  # fmt: skip
    if out.exists():
        raise ExperimentError(f"--out {out}: exists already; choose another name, or remove the file")
    metadata = {key: str(value) for key, value in _describe(memories[0]).items() if key not in ("arrays", "bytes")}
    write_arrays(out, algorithm_arrays(FileArrays(memories[0].file)), metadata=metadata)
    print(f"{out}: {len(FileArrays(out))} arrays, {out.stat().st_size} bytes")


def _find_memories(state: Path | None, id: str | None, run: str | None, damaged: Damaged) -> list[KeptMemory]:
    return [memory for memory in kept_memories(find_state(state, id), damaged) if run in (None, memory.run)]


def find_state(state: Path | None, id: str | None) -> Path:
    """Return the state folder of an agent.

    Args:
        state: the folder, or None.
        id: the name of an agent with the default folder, or None.

    Raises:
        ExperimentError: not exactly one of the two is given.
        RunFolderError: the folder is not an agent's.
    """
    if (state is None) == (id is None):
        raise ExperimentError("give either --state FOLDER, or --id NAME for an agent with the default state folder")
    folder = state if state is not None else default_state(str(id))
    if not (folder / "runs").is_dir():
        raise RunFolderError(
            f"{folder}: is not the state folder of an agent that took part in a run; correct --state or --id"
        )
    return folder


def _describe_all(memories: Iterable[KeptMemory], damaged: Damaged) -> Iterator[dict[str, Any]]:
    for memory in memories:
        try:
            yield _describe(memory)
        except RunFolderError as error:
            damaged(error)


def _describe(memory: KeptMemory) -> dict[str, Any]:
    """Return the row of the list for one memory.

    Raises:
        RunFolderError: its file is damaged, missing, or cannot be read.
    """
    try:
        if not memory.file.exists():
            raise RunFolderError(f"{memory.file}, of client {memory.client}: is missing; restore it from a backup")
        if not CheckedFile(memory.file, memory.digest).is_intact():
            raise PayloadError("it does not have the digest with which it was written")
        arrays = algorithm_arrays(FileArrays(memory.file))
    except PayloadError as error:
        raise RunFolderError(f"{memory.file}, of client {memory.client}: is damaged: {error}") from None
    except OSError as error:
        raise RunFolderError(f"{memory.file}, of client {memory.client}: cannot be read: {error.strerror}") from None
    return {
        "run": memory.run,
        "algorithm": memory.algorithm,
        "client": memory.client,
        "round": memory.round,
        "bytes": memory.file.stat().st_size,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt memory``."""
    app(arguments, prog_name="fedquilt")
