"""The tables of the journal, the checksums of its rows, and the upgrade of an older journal."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

VERSION: Final = 2
"""Version of the journal that this program writes."""
_TABLES: Final = {
    "meta": {"key": "TEXT PRIMARY KEY", "value": "TEXT NOT NULL"},
    "events": {
        "seq": "INTEGER PRIMARY KEY", "kind": "TEXT NOT NULL", "body": "TEXT NOT NULL",
        "bytes_down": "INTEGER NOT NULL", "bytes_up": "INTEGER NOT NULL",
    },
    "checkpoints": {
        "round": "INTEGER PRIMARY KEY", "seq": "INTEGER NOT NULL", "arrays": "TEXT NOT NULL", "extra": "TEXT NOT NULL",
        "at": "REAL NOT NULL", "machine": "TEXT NOT NULL", "result": "TEXT",
        "bytes_down": "INTEGER NOT NULL", "bytes_up": "INTEGER NOT NULL",
    },
}  # fmt: skip
"""The columns of each table, without the column ``digest`` that version 2 added to all of them."""
_DIGEST: Final = "digest TEXT NOT NULL DEFAULT ''"
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=repr)  # repr: a damaged row may hold bytes
Columns = dict[str, list[str]]
"""Table -> its columns."""


def row_digest(before: str, *fields: object) -> str:
    """Return the checksum of a row: SHA-256 in hex over the JSON list of ``before`` and all fields.

    Args:
        before: of an event, the checksum of the event before; of a checkpoint, that of its round's last event; else "".
        fields: the row's fields in the order of the columns, without ``digest``.
    """
    return hashlib.sha256(_ENCODER.encode([before, *fields]).encode()).hexdigest()


def connect(address: str, *, uri: bool = False) -> sqlite3.Connection:
    """Connect to a database; text that is not UTF-8 is read all the same, and its checksum differs."""
    db = sqlite3.connect(address, isolation_level=None, uri=uri)
    db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    return db


def columns_of(db: sqlite3.Connection) -> Columns:
    """Return the columns of each table that the database has."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    return {table: [c for (c,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))] for table in tables}


def version_of(columns: Columns) -> int | None:
    """Return the version of a journal with these tables; None if they are not those of a journal."""
    if columns == {table: list(names) for table, names in _TABLES.items()}:
        return 1
    return VERSION if columns == {table: [*names, "digest"] for table, names in _TABLES.items()} else None


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a block in one transaction, which an error rolls back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a new journal, in the open transaction."""
    for table, columns in _TABLES.items():
        parts = [f"{name} {kind}" for name, kind in columns.items()]
        db.execute(f"CREATE TABLE {table} ({', '.join([*parts, _DIGEST])})")
    put_meta(db, "version", str(VERSION))


def upgrade(db: sqlite3.Connection) -> None:
    """Add the checksums to a journal of version 1, in the open transaction."""
    for table in _TABLES:
        db.execute(f"ALTER TABLE {table} ADD COLUMN {_DIGEST}")
    put_meta(db, "version", str(VERSION))
    for *fields, _ in list(rows(db, "meta")):
        db.execute("UPDATE meta SET digest = ? WHERE key = ?", (row_digest("", *fields), fields[0]))
    chain = {0: ""}
    digest = ""
    for *fields, _ in list(rows(db, "events")):
        digest = chain[fields[0]] = row_digest(digest, *fields)
        db.execute("UPDATE events SET digest = ? WHERE seq = ?", (digest, fields[0]))
    for *fields, _ in list(rows(db, "checkpoints")):
        sealed = row_digest(chain.get(fields[1], ""), *fields)
        db.execute("UPDATE checkpoints SET digest = ? WHERE round = ?", (sealed, fields[0]))


def rows(db: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table in the order of its primary key; the last field of each is its checksum."""
    yield from db.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608 - the names of the tables are constants


def put_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    """Store a value under a key, with its checksum."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, value, row_digest("", key, value)))
