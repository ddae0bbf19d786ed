"""The work folder of a replay: blobs, memories, and how far the replay is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import write_durably
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_server.replay.report import ReplayedRound

_FILE: Final = "replay.json"


class StoredMemoryFile(BaseModel):
    """The private memory of a client after a reply; ``file`` is a name in the folder ``memories``."""

    model_config = ConfigDict(frozen=True)

    client: ClientId
    after: ExchangeId
    file: str | None
    digest: str | None


class ReplayProgress(BaseModel):
    """The rounds that a replay has finished, and what the next one starts from.

    Attributes:
        run: identifier of the run.
        arrays: digest of the state's arrays after the last of the rounds.
        extra: digest of the state's other arrays; empty without any.
        rounds: the finished rounds.
        memories: the clients' private memory.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    arrays: str
    extra: str
    rounds: list[ReplayedRound]
    memories: list[StoredMemoryFile] = []


def read_progress(folder: Path, run: str) -> ReplayProgress | None:
    """Return how far an earlier replay in the folder came; None in a new folder.

    Raises:
        RunFolderError: the folder holds something else.
    """
    path = folder / _FILE
    if not path.exists():
        _check_new(folder)
        return None
    try:
        progress = ReplayProgress.model_validate_json(path.read_bytes())
    except ValidationError:
        raise RunFolderError(f"{path} is damaged: delete the folder, or choose another --out") from None
    if progress.run != run:
        raise RunFolderError(f"{folder} holds a replay of the run {progress.run}, not of {run}: choose another --out")
    return progress


def _check_new(folder: Path) -> None:
    if any(path.name != ".lock" for path in folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty and holds no replay: choose another --out")


def write_progress(folder: Path, progress: ReplayProgress) -> None:
    """Store how far the replay is, durably."""
    write_durably(folder / _FILE, progress.model_dump_json())


def load_memories(folder: Path, progress: ReplayProgress) -> dict[tuple[ClientId, ExchangeId], CheckedFile | None]:
    """Return the stored memories; ``folder`` is that of their files."""
    return {
        (kept.client, kept.after): None if kept.file is None else CheckedFile(folder / kept.file, kept.digest)
        for kept in progress.memories
    }


def store_memories(after: dict[tuple[ClientId, ExchangeId], CheckedFile | None]) -> list[StoredMemoryFile]:
    """Return the memories as a ``ReplayProgress`` stores them."""
    return [
        StoredMemoryFile(
            client=client, after=exchange, file=file.path.name if file else None, digest=file.digest if file else None
        )
        for (client, exchange), file in after.items()
    ]
