"""Targets: files that are read back, and replies from boards."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from fedquilt_client.records import COMMITTED, read_record, write_record
from fedquilt_common.errors import PayloadError, ProtocolError, RunFolderError
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.coordinator.expected_replies import ExpectedReply, check_reply
from fedquilt_server.runs.journal import Journal, peek_meta

EXPECTED = ExpectedReply((1, 0), "0123456789abcdef", [{"w": ("F32", (2, 3)), "n": ("I64", ())}], {"loss": (0.0, 9.0)})

VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
CREATE TABLE checkpoints (
    round INTEGER PRIMARY KEY, seq INTEGER NOT NULL, arrays TEXT NOT NULL, extra TEXT NOT NULL,
    at REAL NOT NULL, machine TEXT NOT NULL, result TEXT, bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
"""


def read_arrays(data: bytes, folder: Path) -> None:
    """Read all arrays of a container."""
    arrays = _arrays(data, folder)
    for name in arrays:
        assert arrays[name].shape == arrays.shape(name)


def read_reply(data: bytes, folder: Path) -> None:
    """Check a reply as the coordinator does before it counts; its numbers are finite and have the shapes asked for."""
    arrays = _arrays(data, folder)
    header = check_reply("lab", 3, EXPECTED, arrays)
    assert header.client == 3
    assert arrays["w"].shape == (2, 3)
    assert np.isfinite(arrays["w"]).all()


def _arrays(data: bytes, folder: Path) -> FileArrays:
    (folder / "container").write_bytes(data)
    return FileArrays(folder / "container")


def read_client_record(data: bytes, folder: Path) -> None:
    """Read what an agent has committed for a client; what was read is written and read again."""
    (folder / COMMITTED).write_bytes(data)
    record = read_record(folder)
    write_record(folder, record)
    assert read_record(folder) == record


def read_journal(data: bytes, folder: Path) -> None:
    """Open a journal, read everything in it, and open it again: damaged events are dropped only once."""
    path = _empty_place(folder)
    path.write_bytes(data)
    peek_meta(path, "experiment")
    assert _read_all(path) == _read_all(path)


def read_journal_rows(data: bytes, folder: Path) -> None:
    """Open a journal of version 1, which has no checksums. A line is a table's letter, then values between tabs."""
    path = _empty_place(folder)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(VERSION_1)
        for line in data.decode("utf-8", "replace").split("\n"):
            table = {"m": "meta", "e": "events", "c": "checkpoints"}.get(line[:1], "")
            values = [None if value == "NULL" else value for value in line[1:].split("\t")]
            with suppress(sqlite3.Error):
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(values))})", values)  # noqa: S608
        db.commit()
    assert _read_all(path) == _read_all(path)


def _empty_place(folder: Path) -> Path:
    for left_over in folder.glob("journal.sqlite*"):
        left_over.unlink()
    return folder / "journal.sqlite"


def _read_all(path: Path) -> object:
    with closing(Journal(path)) as journal:
        checkpoint = journal.last_checkpoint()
        return checkpoint, list(journal.events_after(0)), journal.results(), journal.traffic()


TARGETS = {
    "journals": (read_journal, (RunFolderError,), 32768),
    "journal-rows": (read_journal_rows, (RunFolderError,), 4096),
    "containers": (read_arrays, (PayloadError,), 4096),
    "replies": (read_reply, (ProtocolError,), 4096),
    "client-records": (read_client_record, (RunFolderError,), 4096),
}
