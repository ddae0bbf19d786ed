"""A program that leaves a folder as a finished run does, in the time of a bare Python."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fedquilt_server.runs import journal_schema
from fedquilt_server.status.results import FINISHED, FORMAT, Result
from fedquilt_server.status.run_file_names import JOURNAL, RESULT


def finishing_text(folder: Path, **final: float | int | str) -> str:
    """Return a Python program, of the standard library, that leaves ``folder`` as a finished run does.

    Args:
        folder: of the run, which has no rounds.
        final: its scores.
    """
    with closing(journal_schema.connect(":memory:")) as db:
        with journal_schema.transaction(db):
            journal_schema.create(db)
            journal_schema.put_meta(db, "finished", "yes")
        script = "\n".join(db.iterdump())
    ended = Result(
        format=FORMAT, name="digits", run="run", algorithm="fedavg", dataset="digits", seed=1, rounds=[], final=final,
        **FINISHED.model_dump(),
    ).model_dump_json()  # fmt: skip
    return (
        f"import sqlite3\nsqlite3.connect({str(folder / JOURNAL)!r}).executescript({script!r})\n"
        f"open({str(folder / RESULT)!r}, 'w').write({ended!r})\n"
    )
