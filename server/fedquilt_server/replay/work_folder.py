"""The work folder of a replay: blobs, memories, and how far the replay is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import write_durably
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_server.replay.report import ReplayedRound

_FILE: Final = "replay.json"


@dataclass(frozen=True)
class ReplayOptions:
    """What a replay computes and compares; all rounds in one work folder have the same options.

    Attributes:
        evaluate: evaluate the state after each round, and compare the scores.
        retrain: train every reply again, even those whose file is kept.
        threads: threads of each training process, as many as on the boards, because another number gives other bits.
    """

    evaluate: bool = False
    retrain: bool = False
    threads: int = 1

    def __str__(self) -> str:
        """The options as the command line takes them."""
        switches = [f"--{name}" for name in ("evaluate", "retrain") if getattr(self, name)]
        return " ".join([*switches, f"--threads {self.threads}"])


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
        options: those of every round in the folder.
        arrays: digest of the state's arrays after the last of the rounds.
        extra: digest of the state's other arrays; empty without any.
        rounds: the finished rounds.
        memories: the clients' private memory.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    options: ReplayOptions
    arrays: str
    extra: str
    rounds: list[ReplayedRound]
    memories: list[StoredMemoryFile] = []


def read_progress(folder: Path, run: str, options: ReplayOptions) -> ReplayProgress | None:
    """Return how far an earlier replay in the folder came; None in a new folder.

    Raises:
        RunFolderError: the folder holds something else, or a replay with other options.
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
    if progress.options != options:
        raise RunFolderError(
            f"{folder} holds a replay with {progress.options}, not with {options}, so its rounds do not show the same: "
            "give the same options again, or choose another --out"
        )
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
