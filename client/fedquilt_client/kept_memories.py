"""Lists the private memories that an agent's state folder has, for their owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedquilt_client.records import COMMITTED, read_record
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.wire.messages import RunMessage


@dataclass(frozen=True)
class KeptMemory:
    """The newest private memory of a client in a run, as it is after its reply of ``round``."""

    run: str
    algorithm: str
    client: int
    round: int
    file: Path
    digest: str | None


Damaged = Callable[[RunFolderError], None]
"""Receives the error of each file that cannot be read."""


def _raise(error: RunFolderError) -> None:
    raise error


def kept_memories(folder: Path, damaged: Damaged = _raise) -> list[KeptMemory]:
    """List the private memories in an agent's state folder; the agent may be running.

    Args:
        damaged: receives an error for each file that cannot be read and is left out; by default it is raised.
    """
    homes = [home for home in sorted((folder / "runs").iterdir()) if any(home.glob("clients/*"))]
    return [memory for home in homes for memory in _list_run(home, damaged)]


def _list_run(home: Path, damaged: Damaged) -> Iterator[KeptMemory]:
    try:
        run = RunMessage.model_validate_json((home / "run.json").read_bytes())
    except (OSError, ValueError):
        return damaged(RunFolderError(f"{home / 'run.json'}: cannot be read; is this the state folder of an agent?"))
    algorithm = str(run.experiment.get("algorithm", {}).get("name", ""))
    clients = [file.parent for file in home.glob(f"clients/*/{COMMITTED}") if file.parent.name.isdigit()]
    for client in sorted(clients, key=lambda path: int(path.name)):
        try:
            with report_disk_errors(client):
                newest = [memory for memory in read_record(client).memories if memory.file is not None][-1:]
        except RunFolderError as error:
            damaged(RunFolderError(f"{error}; so the private memory of client {client.name} is unknown"))
            continue
        for memory in newest:
            file = client / str(memory.file)
            yield KeptMemory(run.run, algorithm, int(client.name), memory.after[0], file, memory.digest)
    return None
