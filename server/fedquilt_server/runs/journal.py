"""The write-ahead journal of a run: events, checkpoints, and what a restart needs.

Events are committed before they are handled. The journal is SQLite in WAL mode with ``synchronous=FULL``: neither a
killed process nor a power cut loses a committed event.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_server.round.events import Event, decode_event, encode_event
from fedquilt_server.status.results import RoundResult

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoints (
    round INTEGER PRIMARY KEY, seq INTEGER NOT NULL, arrays TEXT NOT NULL, extra TEXT NOT NULL,
    at REAL NOT NULL, machine TEXT NOT NULL, result TEXT, bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed the coordinator's socket since the run began."""

    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class StoredCheckpoint:
    """A finished round; round 0 is the start of the run.

    Attributes:
        seq: sequence number of the round's last event.
        arrays: digest of the global model; ``extra`` that of the algorithm's other arrays, "" if it has none.
        at: Unix time in seconds from which the next round counts.
        machine: the machine's snapshot.
    """

    round: int
    seq: int
    arrays: str
    extra: str
    at: float
    machine: str
    result: RoundResult | None
    traffic: Traffic


class Journal:
    """The journal of one run, at ``path``.

    Raises:
        RunFolderError: the file is no journal, or a newer fedquilt wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            version = self._prepare()
        except (sqlite3.Error, ValueError) as error:
            raise RunFolderError(f"{path} is not a fedquilt journal: {error}. Choose another --out") from None
        if version > _VERSION:
            self._db.close()
            raise RunFolderError(f"{path} was written by a newer fedquilt (journal version {version}): update this one")
        self.set_meta("version", str(_VERSION))

    def _prepare(self) -> int:
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            return int(self.meta("version") or _VERSION)
        except (sqlite3.Error, ValueError):
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def meta(self, key: str) -> str | None:
        """Return a value that ``set_meta`` stored; None if there is none."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Commit a value under a key."""
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def append(self, event: Event, traffic: Traffic) -> int:
        """Commit one event; returns its sequence number."""
        return self._write(
            "INSERT INTO events (kind, body, bytes_down, bytes_up) VALUES (?, ?, ?, ?)",
            (*encode_event(event), traffic.down, traffic.up),
        )

    def events_after(self, seq: int) -> Iterator[tuple[int, Event]]:
        """Yield the events after ``seq``, oldest first, with their sequence numbers."""
        rows = self._db.execute("SELECT seq, kind, body FROM events WHERE seq > ? ORDER BY seq", (seq,)).fetchall()
        for number, kind, body in rows:
            yield number, decode_event(kind, body)

    def save(self, checkpoint: StoredCheckpoint) -> None:
        """Commit a checkpoint together with the round's results."""
        result = checkpoint.result.model_dump_json() if checkpoint.result else None
        self._write(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                checkpoint.round, checkpoint.seq, checkpoint.arrays, checkpoint.extra, checkpoint.at,
                checkpoint.machine, result, checkpoint.traffic.down, checkpoint.traffic.up,
            ),
        )  # fmt: skip

    def last_checkpoint(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint; None in a new journal."""
        row = self._db.execute("SELECT * FROM checkpoints ORDER BY round DESC LIMIT 1").fetchone()
        return None if row is None else _checkpoint(row)

    def results(self) -> list[RoundResult]:
        """Return the results of all finished rounds."""
        rows = self._db.execute("SELECT result FROM checkpoints WHERE result IS NOT NULL ORDER BY round")
        return [RoundResult.model_validate_json(row[0]) for row in rows]

    def traffic(self) -> Traffic:
        """Return the bytes counted up to the last commit."""
        down, up = self._db.execute(
            "SELECT max(d), max(u) FROM (SELECT max(bytes_down) d, max(bytes_up) u FROM events"
            " UNION ALL SELECT max(bytes_down), max(bytes_up) FROM checkpoints)"
        ).fetchone()
        noted_down, noted_up = map(int, (self.meta("traffic") or "0 0").split())
        return Traffic(max(down or 0, noted_down), max(up or 0, noted_up))

    def note_traffic(self, traffic: Traffic) -> None:
        """Commit the byte counters without an event."""
        self.set_meta("traffic", f"{traffic.down} {traffic.up}")

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        try:
            return int(self._db.execute(statement, values).lastrowid or 0)
        except sqlite3.Error as error:
            raise RunFolderError(f"{self.path} cannot be written: {error}. Check the free disk space") from None


def _checkpoint(row: tuple[int, int, str, str, float, str, str | None, int, int]) -> StoredCheckpoint:
    number, seq, arrays, extra, at, machine, result, down, up = row
    parsed = RoundResult.model_validate_json(result) if result else None
    return StoredCheckpoint(number, seq, arrays, extra, at, machine, parsed, Traffic(down, up))


def peek_meta(path: Path, key: str) -> str | None:
    """Return a value of a journal that another process may be writing; None if there is none.

    Raises:
        RunFolderError: the file is no journal.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                return None  # the process was killed before it made the first table
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error as error:
        raise RunFolderError(f"{path} is not a fedquilt journal: {error}. Choose another --out") from None
    return None if row is None else str(row[0])
