"""The write-ahead journal of a run: events, checkpoints, and what a restart needs.

Events are committed before they are handled. The journal is SQLite in WAL mode with ``synchronous=FULL``: neither a
killed process nor a power cut loses a committed event. Each row has a checksum. That of an event covers the checksum of
the event before, and that of a checkpoint covers the checksum of the event that it closes.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedquilt_server.round.events import Event, decode_event, encode_event
from fedquilt_server.runs.journal_check import (
    EventChain,
    check_rows,
    check_structure,
    check_version,
    damaged_journal,
    drop_damaged,
    journal_errors,
    read_meta,
    undecodable_rows,
)
from fedquilt_server.runs.journal_schema import (
    columns_of,
    connect,
    create,
    put_meta,
    row_digest,
    transaction,
    upgrade,
    version_of,
)
from fedquilt_server.status.results import RoundResult

log = logging.getLogger(__name__)


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
    """The journal of one run, at ``path``. Opening it verifies every row (``journal_check``).

    Events after the last checkpoint that are damaged are dropped, with a warning: the agents offer their replies again.
    A journal of version 1 gets its checksums.

    Args:
        path: the file.
        source: the journal of which ``path`` is a copy, for messages; None: it is no copy.

    Raises:
        RunFolderError: the file is no journal or is damaged, a newer fedquilt wrote it, or the disk is full.
    """

    def __init__(self, path: Path, source: Path | None = None) -> None:
        self.path = source or path
        with ExitStack() as undo, journal_errors(self.path):
            self._db = undo.enter_context(closing(connect(str(path))))
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._make_current()
            self._chain = self._verify()
            undo.pop_all()

    def _make_current(self) -> None:
        """Create the tables, or upgrade those of version 1."""
        columns = columns_of(self._db)
        if not columns:
            with transaction(self._db):
                return create(self._db)
        version = version_of(columns)
        if "meta" in columns:
            found = read_meta(self._db, self.path, "version")
            check_version(self.path, "1" if found is None and version == 1 else found)
        if version is None:
            raise damaged_journal(self.path, "its tables are not those of a journal")
        if version == 1:
            check_structure(self._db, self.path)
            with transaction(self._db):
                upgrade(self._db)
        return None

    def _verify(self) -> EventChain:
        chain = check_rows(self._db, self.path)
        if chain.damaged is None:
            check_structure(self._db, self.path)
            return chain
        with transaction(self._db):
            dropped = drop_damaged(self._db, chain)
            check_structure(self._db, self.path)
            if check_rows(self._db, self.path) != replace(chain, damaged=None):
                raise damaged_journal(self.path, f"event {chain.seq + 1} cannot be dropped")
        log.warning(
            "%s: event %d (%s) differs from its checksum: dropped the last %d events, which are after the last "
            "checkpoint; agents send the replies among them again",
            self.path, chain.seq + 1, chain.damaged, dropped,
        )  # fmt: skip
        return replace(chain, damaged=None)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def meta(self, key: str) -> str | None:
        """Return a value that ``set_meta`` stored; None if there is none."""
        with journal_errors(self.path):
            return read_meta(self._db, self.path, key)

    def set_meta(self, key: str, value: str) -> None:
        """Commit a value under a key."""
        with journal_errors(self.path):
            put_meta(self._db, key, value)

    def append(self, event: Event, traffic: Traffic) -> int:
        """Commit one event; returns its sequence number."""
        return self.append_all([event], traffic)[0]

    def append_all(self, events: Sequence[Event], traffic: Traffic) -> list[int]:
        """Commit events together; returns their sequence numbers."""
        chain, rows = self._chain, []
        for event in events:
            row = (chain.seq + 1, *encode_event(event), traffic.down, traffic.up)
            chain = EventChain(row[0], row_digest(chain.digest, *row))
            rows.append((*row, chain.digest))
        with journal_errors(self.path), transaction(self._db):
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._chain = chain
        return [row[0] for row in rows]

    def events_after(self, seq: int) -> Iterator[tuple[int, Event]]:
        """Yield the events after ``seq``, oldest first, with their sequence numbers."""
        for number, kind, body in self._query("SELECT seq, kind, body FROM events WHERE seq > ? ORDER BY seq", seq):
            with undecodable_rows(self.path):
                event = decode_event(kind, body)
            yield number, event

    def save(self, checkpoint: StoredCheckpoint) -> None:
        """Commit a checkpoint together with the round's results."""
        result = checkpoint.result.model_dump_json() if checkpoint.result else None
        row = (
            checkpoint.round, checkpoint.seq, checkpoint.arrays, checkpoint.extra, float(checkpoint.at),
            checkpoint.machine, result, checkpoint.traffic.down, checkpoint.traffic.up,
        )  # fmt: skip
        closing_event = self._query("SELECT digest FROM events WHERE seq = ?", checkpoint.seq)
        digest = row_digest(closing_event[0][0] if closing_event else "", *row)
        with journal_errors(self.path):
            self._db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))

    def last_checkpoint(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint; None in a new journal."""
        found = self._query("SELECT * FROM checkpoints ORDER BY round DESC LIMIT 1")
        with undecodable_rows(self.path):
            return _checkpoint(found[0]) if found else None

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return all checkpoints, oldest first."""
        found = self._query("SELECT * FROM checkpoints ORDER BY round")
        with undecodable_rows(self.path):
            return [_checkpoint(row) for row in found]

    def results(self) -> list[RoundResult]:
        """Return the results of all finished rounds."""
        found = self._query("SELECT result FROM checkpoints WHERE result IS NOT NULL ORDER BY round")
        with undecodable_rows(self.path):
            return [RoundResult.model_validate_json(row[0]) for row in found]

    def traffic(self) -> Traffic:
        """Return the bytes counted up to the last commit."""
        down, up = self._query(
            "SELECT max(d), max(u) FROM (SELECT max(bytes_down) d, max(bytes_up) u FROM events"
            " UNION ALL SELECT max(bytes_down), max(bytes_up) FROM checkpoints)"
        )[0]
        with undecodable_rows(self.path):
            noted_down, noted_up = map(int, (self.meta("traffic") or "0 0").split())
            return Traffic(max(down or 0, noted_down), max(up or 0, noted_up))

    def note_traffic(self, traffic: Traffic) -> None:
        """Commit the byte counters without an event."""
        self.set_meta("traffic", f"{traffic.down} {traffic.up}")

    def note_alive(self, at: float) -> None:
        """Commit that the coordinator runs at the Unix time ``at``, in seconds: the next event may come much later."""
        self.set_meta("alive_at", str(at))

    def last_moment(self) -> float:
        """Return the latest Unix time in seconds at which a coordinator is known to have run; 0 in a new journal."""
        last = self._query("SELECT kind, body FROM events ORDER BY seq DESC LIMIT 1")
        checkpoint = self.last_checkpoint()
        with undecodable_rows(self.path):
            events = [decode_event(kind, body).at for kind, body in last]
            noted = float(self.meta("alive_at") or 0.0)
        return max(noted, *events, checkpoint.at if checkpoint else 0.0)

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with journal_errors(self.path):
            return self._db.execute(statement, values).fetchall()


def _checkpoint(row: tuple[Any, ...]) -> StoredCheckpoint:
    number, seq, arrays, extra, at, machine, result, down, up, _ = row
    parsed = RoundResult.model_validate_json(result) if result else None
    return StoredCheckpoint(number, seq, arrays, extra, at, machine, parsed, Traffic(down, up))


def copy_journal(source: Path, target: Path) -> None:
    """Copy a journal as of its last commit; another process may be writing to it, and the copy replaces ``target``.

    Raises:
        RunFolderError: the journal is missing or damaged, or is not a journal.
    """
    target.unlink(missing_ok=True)
    with (
        journal_errors(source),
        closing(connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as recorded,
        closing(connect(str(target))) as copy,
    ):
        recorded.backup(copy)


@contextmanager
def _peek(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open a journal that another process may be writing; yields None if there is none yet."""
    if not path.exists():
        yield None
        return
    # a process that was killed while it made the file has left a rollback journal, which a reader cannot roll back
    mode = "rw" if path.with_name(f"{path.name}-journal").exists() else "ro"
    with journal_errors(path), closing(connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as db:
        yield db if columns_of(db) else None  # the process was killed before it made the tables


def peek_meta(path: Path, key: str) -> str | None:
    """Return a value of a journal that another process may be writing; None if there is none.

    Raises:
        RunFolderError: the file is damaged, or is not a journal.
    """
    with _peek(path) as db:
        return None if db is None else read_meta(db, path, key)


def peek_model(path: Path) -> tuple[int, str] | None:
    """Return the last finished round of a journal that another process may be writing, and its model's digest.

    Returns:
        None before the first checkpoint.

    Raises:
        RunFolderError: the file is damaged, or is not a journal.
    """
    with _peek(path) as db:
        found = db and db.execute("SELECT round, arrays FROM checkpoints ORDER BY round DESC LIMIT 1").fetchone()
        return (int(found[0]), str(found[1])) if found else None


def peek_extra(path: Path) -> str:
    """Return the digest of what an algorithm keeps besides the model after the last finished round; empty if nothing.

    Raises:
        RunFolderError: the file is damaged, or is not a journal.
    """
    with _peek(path) as db:
        found = db and db.execute("SELECT extra FROM checkpoints ORDER BY round DESC LIMIT 1").fetchone()
        return str(found[0]) if found else ""
