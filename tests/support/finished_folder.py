"""A program that leaves a folder as a finished run does, in the time of a bare Python."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fedquilt_server.runs import journal_schema
from fedquilt_server.status.run_file_names import JOURNAL


def finishing_text(folder: Path) -> str:
    """Return a Python program, of the standard library, that writes the journal of a finished run into ``folder``."""
    with closing(journal_schema.connect(":memory:")) as db:
        with journal_schema.transaction(db):
            journal_schema.create(db)
            journal_schema.put_meta(db, "finished", "yes")
        script = "\n".join(db.iterdump())
    return f"import sqlite3\nsqlite3.connect({str(folder / JOURNAL)!r}).executescript({script!r})\n"
