"""Verifies every row of a journal by its checksum, and drops damaged events that the agents can send again."""

from __future__ import annotations

import os
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.error_messages import RESUME
from fedquilt_common.errors import RunFolderError
from fedquilt_server.runs.journal_schema import VERSION, row_digest, rows

_FREE_SPACE: Final = "Free disk space, or make the file and its folder writable"
_REMEDIES: Final = {
    "disk I/O": _FREE_SPACE,
    "is full": _FREE_SPACE,
    "readonly": _FREE_SPACE,
    "unable to open": _FREE_SPACE,
    "locked": "Close the other program that uses it",
}
"""What to do about errors that are not in the file's content, by words of SQLite's message."""
LONGEST_PATH: Final = 500
"""Most characters of a journal's path: SQLite allows 511, and its other files have longer names."""
_REASON_LENGTH: Final = 300
"""Most characters of an error that quotes a damaged file."""


@dataclass(frozen=True)
class EventChain:
    """The events of a journal up to the first damaged one.

    Attributes:
        seq: sequence number of the last intact event; 0 if there is none.
        digest: its checksum; "" if there is none.
        damaged: kind of the first damaged event, as far as it can be read; None if all are intact.
    """

    seq: int = 0
    digest: str = ""
    damaged: str | None = None


def damaged_journal(path: Path, what: object) -> RunFolderError:
    """Return the error for a journal whose content cannot be trusted."""
    reason = textwrap.shorten(str(what), _REASON_LENGTH, placeholder=" ...")
    return RunFolderError(
        f"{path} is damaged, or is not a fedquilt journal: {reason}. Restore the file from a backup, or start a "
        "new run in another folder"
    )


@contextmanager
def journal_errors(path: Path) -> Iterator[None]:
    """Run a block that uses the journal at ``path``.

    Raises:
        RunFolderError: the journal is damaged, or the disk is full, read-only or broken.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:  # SQLite's message may quote damaged text
        if path.is_dir():
            raise damaged_journal(path, "it is a folder") from error
        if path.exists() and not os.access(path, os.R_OK):
            raise RunFolderError(f"{path} cannot be read. Let this user read and write the files of the run") from error
        if len(str(path.absolute())) > LONGEST_PATH:
            raise RunFolderError(
                f"{path} cannot be used: SQLite opens no file whose path has more than {LONGEST_PATH} characters. "
                "Choose a folder with a shorter path"
            ) from error
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in str(error)), None)
        if remedy is not None:
            raise RunFolderError(f"{path} cannot be used: {error}. {remedy}, then {RESUME}") from error
        raise damaged_journal(path, error) from error


@contextmanager
def undecodable_rows(path: Path) -> Iterator[None]:
    """Run a block that decodes rows of the journal at ``path``.

    Raises:
        RunFolderError: a row is not valid; this happens only in journals that version 1 wrote, without checksums.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise damaged_journal(path, f"a row cannot be decoded: {error}") from error


def check_version(path: Path, version: str | None) -> None:
    """Check the version that a journal has in its table ``meta``.

    Raises:
        RunFolderError: a newer fedquilt wrote the journal, or this is no version.
    """
    if version is None or not version.isdecimal():
        raise damaged_journal(path, "its version is missing or damaged")
    if int(version) > VERSION:
        raise RunFolderError(f"{path} was written by a newer fedquilt (journal version {version}): update this one")


def check_rows(db: sqlite3.Connection, path: Path) -> EventChain:
    """Verify all rows.

    Returns:
        The events; damaged ones are after the last checkpoint.

    Raises:
        RunFolderError: a row of ``meta`` or ``checkpoints`` is damaged, or an event that a checkpoint covers.
    """
    for *fields, digest in rows(db, "meta"):
        if row_digest("", *fields) != digest:
            raise damaged_journal(path, f"the checksum of {fields[0]!r} in its table meta differs")
    checkpoints = list(rows(db, "checkpoints"))
    chain, closing = _check_events(db, {row[1] for row in checkpoints})
    for *fields, digest in checkpoints:
        if fields[1] not in closing:
            raise damaged_journal(path, f"event {chain.seq + 1}, before the checkpoint of round {fields[0]}, differs "
                                        "from its checksum or is missing")  # fmt: skip
        if row_digest(closing[fields[1]], *fields) != digest:
            raise damaged_journal(path, f"the checksum of round {fields[0]} in its table checkpoints differs")
    return chain


def _check_events(db: sqlite3.Connection, wanted: set[int]) -> tuple[EventChain, dict[int, str]]:
    """Verify the events; returns also the checksums of the intact events ``wanted``, by sequence number."""
    chain, found = EventChain(), {0: ""}
    for *fields, digest in rows(db, "events"):
        if row_digest(chain.digest, *fields) != digest:
            return EventChain(chain.seq, chain.digest, str(fields[1])), found
        chain = EventChain(fields[0], digest)
        if chain.seq in wanted:
            found[chain.seq] = digest
    return chain, found


def drop_damaged(db: sqlite3.Connection, chain: EventChain) -> int:
    """Delete the events after the last intact one, in the open transaction; returns their number."""
    return db.execute("DELETE FROM events WHERE seq > ?", (chain.seq,)).rowcount


def check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Check that SQLite's pages and indices agree with one another.

    Raises:
        RunFolderError: they do not.
    """
    found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise damaged_journal(path, found)


def read_meta(db: sqlite3.Connection, path: Path, key: str) -> str | None:
    """Return a value of the table ``meta``, verified; None if there is none.

    Raises:
        RunFolderError: its row is damaged.
    """
    row = db.execute("SELECT * FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    if len(row) > 2 and row_digest("", *row[:2]) != row[2]:
        raise damaged_journal(path, f"the checksum of {key!r} in its table meta differs")
    return str(row[1])
