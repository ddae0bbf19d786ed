"""The ledger of a board: the privacy that tasks have spent on each client's samples, in every run.

A file ``<name>.jsonl`` belongs to the samples with that name (``samples_spent``). Each line is one task and the
checksum of the file up to it, so that a damaged file is never taken for a shorter one. Lines are only appended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import sync
from fedquilt_common.privacy.accountant import Charge

SUFFIX: Final = ".jsonl"
_ADVICE: Final = (
    "the board cannot know what it has spent, so it trains no client with these samples. Restore the file from a "
    "backup of the time after its last training; an older one would forget what was spent since"
)


@dataclass(frozen=True)
class LedgerEntry:
    """A training with differential privacy.

    Attributes:
        run: identifier of the run.
        client: its client.
        round: number of the round.
        exchange: number of the exchange.
        training: digest of all that the result depends on. A training that is repeated gives the same bits, so it
            spends once; any other one spends again.
        charge: its steps.
        epsilon: what all trainings on these samples have spent with this one.
        delta: the delta of that epsilon.
    """

    run: str
    client: int
    round: int
    exchange: int
    training: str
    charge: Charge
    epsilon: float
    delta: float

    def encode(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> LedgerEntry:
        """Return the entry of what ``encode`` returned.

        Raises:
            TypeError: fields are missing or unknown.
        """
        return cls(**{**fields, "charge": Charge(**fields["charge"])})


def ledger_file(folder: Path, name: str) -> Path:
    """Return the path of the ledger with this name."""
    return folder / f"{name}{SUFFIX}"


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Read a ledger; an absent one is empty.

    A last line that is unfinished belongs to a task whose reply was never committed, and does not count.

    Raises:
        RunFolderError: the file is damaged.
        OSError: the file cannot be read; it may be intact.
    """
    return [entry for entry, _ in _read_lines(path)]


def measure_ledgers(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the bytes of ledgers by their names, 0 for an absent one; a ledger with the same size is the same."""
    paths = {name: ledger_file(folder, name) for name in names}
    return {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}


def append_entries(path: Path, entries: Sequence[LedgerEntry]) -> None:
    """Add trainings durably, except those that the ledger has.

    Raises:
        RunFolderError: the file is damaged.
        OSError: the file cannot be written.
    """
    lines = list(_read_lines(path))
    known = {entry.training for entry, _ in lines}
    end, seal = lines[-1][1] if lines else (0, "")
    text = ""
    for entry in entries:
        if entry.training not in known:
            line = json.dumps(entry.encode(), separators=(",", ":"))
            seal = _seal(seal, line)
            text += f"{seal} {line}\n"
    if not text:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("ab") as file:
        file.truncate(end)  # the rest of a line that was never finished
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync(path.parent)


def _read_lines(path: Path) -> Iterator[tuple[LedgerEntry, tuple[int, str]]]:
    """Yield each entry with the position of its line's end and the checksum up to there."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    end, seal = 0, ""
    *lines, unfinished = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            found, _, text = line.decode().partition(" ")
            entry = LedgerEntry.decode(json.loads(text))
        except (ValueError, TypeError, LookupError) as error:
            raise RunFolderError(f"{path}:{number}: is damaged ({error}): {_ADVICE}") from None
        seal = _seal(seal, text)
        if found != seal:
            raise RunFolderError(f"{path}:{number}: does not have its checksum: {_ADVICE}")
        end += len(line) + 1
        yield entry, (end, seal)
    if any(unfinished[:cut].endswith(b"}") and _is_sealed(unfinished[:cut], seal) for cut in (-1, None)):
        raise RunFolderError(f"{path}: its last line has no end, but is whole: {_ADVICE}")


def _is_sealed(line: bytes, before: str) -> bool:
    """Whether a line has the checksum that it names."""
    found, _, text = line.decode(errors="replace").partition(" ")
    return found == _seal(before, text)


def _seal(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()
