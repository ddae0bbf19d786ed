"""The journal: what was committed is there again, whoever opens it next."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_common.types import Profile
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied, Ticked, encode_event
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, Traffic, peek_meta
from fedquilt_server.runs.journal_check import journal_errors
from fedquilt_server.runs.journal_schema import upgrade
from fedquilt_server.status.results import RoundResult

EVENTS: list[Event] = [
    Joined(1.5, "pi", 1795217644, (0, 7), 2, Profile("pi-5", 4, 1 << 33, "", "Raspberry Pi 5 \u00b5")),
    Joined(2.0, "jetson", 1, ()),
    Replied(0.1 + 0.2, "pi", 7, 1, 0, "ab" * 32, 12.5, {"loss": 1e-300, "train_seconds": 1 / 3}),
    Rejected(3.0, "pi", None, 1, "garbage \x00 \ud800", "rejected"),
    Rejected(3.0, "pi", 7, 1, "closed", "late"),
    Ticked(4.0),
    Left(5.0, "pi", 1795217644),
]


def row(number: int) -> RoundResult:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    return RoundResult.model_validate({**zeros, "round": number, "accuracy": 1 / 3})


def stored(number: int, seq: int, result: RoundResult | None, traffic: Traffic) -> StoredCheckpoint:
    return StoredCheckpoint(number, seq, "ab" * 32, "", 12.5, '{"agents": {}}', result, traffic)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(path)) as made:
        yield made


def test_events_come_back_as_they_were_and_in_order(journal: Journal, path: Path) -> None:
    numbers = [journal.append(event, Traffic()) for event in EVENTS]
    assert numbers == sorted(set(numbers))
    with closing(Journal(path)) as other:
        assert list(other.events_after(0)) == list(zip(numbers, EVENTS, strict=True))
        assert [event for _, event in other.events_after(numbers[3])] == EVENTS[4:]
        assert other.append(Ticked(9), Traffic()) > numbers[-1]


def test_a_number_that_is_none_is_never_written(journal: Journal) -> None:
    with pytest.raises(ValueError, match="JSON"):
        journal.append(Replied(1, "pi", 0, 1, 0, "ab", float("nan")), Traffic())
    assert list(journal.events_after(0)) == []


def test_each_event_is_committed_at_once(journal: Journal, path: Path) -> None:
    """Another connection sees it without the first one being closed: so does the process after a crash."""
    journal.append(EVENTS[0], Traffic())
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (1,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_newest_checkpoint_and_the_rows_of_all(journal: Journal) -> None:
    assert journal.last_checkpoint() is None
    start = stored(0, 0, None, Traffic())
    journal.save(start)
    assert journal.last_checkpoint() == start
    for number in (1, 10, 2):
        journal.save(stored(number, 5 * number, row(number), Traffic(number, 2)))
    journal.save(stored(10, 51, row(10), Traffic(11, 3)))
    assert journal.last_checkpoint() == stored(10, 51, row(10), Traffic(11, 3))
    assert journal.results() == [row(1), row(2), row(10)]


def test_traffic_is_the_highest_that_was_committed(journal: Journal, path: Path) -> None:
    assert journal.traffic() == Traffic(0, 0)
    journal.append(Ticked(1), Traffic(100, 20))
    assert journal.traffic() == Traffic(100, 20)
    journal.save(stored(1, 1, row(1), Traffic(150, 30)))
    assert journal.traffic() == Traffic(150, 30)
    journal.append(Ticked(2), Traffic(160, 30))
    with closing(Journal(path)) as other:
        assert other.traffic() == Traffic(160, 30)
    journal.note_traffic(Traffic(170, 40))  # of samples: no event follows for a while
    with closing(Journal(path)) as other:
        assert other.traffic() == Traffic(170, 40)
    journal.append(Ticked(3), Traffic(180, 50))
    assert journal.traffic() == Traffic(180, 50)


def test_words_are_kept_and_can_be_looked_at_from_outside(journal: Journal, path: Path) -> None:
    assert journal.meta("run") is None
    journal.set_meta("run", "a")
    journal.set_meta("run", "b")
    assert (journal.meta("run"), peek_meta(path, "run"), peek_meta(path, "nothing")) == ("b", "b", None)


def test_looking_makes_no_journal(path: Path) -> None:
    assert peek_meta(path, "run") is None
    assert not path.exists()


@pytest.mark.parametrize("name", ["plain", "with space", "100%41", "a#b", "what?"])
def test_any_folder_name_will_do(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    path = tmp_path / name / "journal.sqlite"
    with closing(Journal(path)) as made:
        made.set_meta("run", name)
    assert peek_meta(path, "run") == name


def test_a_journal_that_a_crash_left_empty_is_a_new_one(path: Path) -> None:
    """Killed between the file's creation and its first table."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
    assert peek_meta(path, "run") is None
    with closing(Journal(path)) as made:
        assert made.last_checkpoint() is None


IS_NONE = r"journal\.sqlite is damaged, or is not a fedquilt journal.*another folder"


def test_something_else_is_no_journal(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    for attempt in (lambda: Journal(path), lambda: peek_meta(path, "run")):
        with pytest.raises(RunFolderError, match=IS_NONE):
            attempt()
    assert path.read_bytes() == b"not a database" * 100


def test_a_folder_is_no_journal(path: Path) -> None:
    path.mkdir()
    for attempt in (lambda: Journal(path), lambda: peek_meta(path, "run")):
        with pytest.raises(RunFolderError, match="it is a folder"):
            attempt()


@pytest.mark.parametrize(("version", "reason"), [("3", "newer fedquilt .journal version 3"), ("x", "not a fedquilt")])
def test_a_journal_of_another_version(version: str, reason: str, path: Path) -> None:
    with closing(Journal(path)) as made:
        assert made.meta("version") == "2"
        made.set_meta("version", version)
    with pytest.raises(RunFolderError, match=reason):
        Journal(path)
    assert peek_meta(path, "version") == version


FIRST_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
CREATE TABLE checkpoints (
    round INTEGER PRIMARY KEY, seq INTEGER NOT NULL, arrays TEXT NOT NULL, extra TEXT NOT NULL,
    at REAL NOT NULL, machine TEXT NOT NULL, result TEXT, bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL);
INSERT INTO meta VALUES ('version', '1'), ('run', 'a');
"""


def test_a_journal_of_version_1_gets_its_checksums(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(FIRST_SCHEMA)
        for event in EVENTS:
            db.execute("INSERT INTO events (kind, body, bytes_down, bytes_up) VALUES (?, ?, 1, 2)", encode_event(event))
        db.execute("INSERT INTO checkpoints VALUES (1, 3, 'ab', '', 12, '', NULL, 0, 0)")
        db.commit()
    assert (peek_meta(path, "run"), peek_meta(path, "version")) == ("a", "1")
    for _ in range(2):
        with closing(Journal(path)) as journal:
            assert [event for _, event in journal.events_after(0)] == EVENTS
            assert journal.last_checkpoint() == StoredCheckpoint(1, 3, "ab", "", 12.0, "", None, Traffic())
            assert (journal.meta("run"), journal.meta("version")) == ("a", "2")


def test_an_upgrade_that_is_killed_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(FIRST_SCHEMA)

    def killed(db: sqlite3.Connection) -> None:
        upgrade(db)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedquilt_server.runs.journal.upgrade", killed)
    with pytest.raises(KeyboardInterrupt):
        Journal(path)
    monkeypatch.undo()
    assert peek_meta(path, "version") == "1"
    with closing(Journal(path)) as journal:
        assert journal.meta("version") == "2"


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement).rowcount


def test_damaged_events_after_the_last_checkpoint_are_dropped(
    journal: Journal, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for event in EVENTS:
        journal.append(event, Traffic())
    journal.save(stored(1, 3, row(1), Traffic()))
    change(path, "UPDATE events SET body = replace(body, 'closed', 'clozed') WHERE seq = 5")
    with closing(Journal(path)) as other:
        assert [event for _, event in other.events_after(0)] == EVENTS[:4]
        assert other.append(Ticked(9.0), Traffic()) == 5
    assert "event 5 (Rejected) differs from its checksum: dropped the last 3 events" in caplog.text
    caplog.clear()
    with closing(Journal(path)) as other:
        assert [event for _, event in other.events_after(3)] == [EVENTS[3], Ticked(9.0)]
    assert not caplog.text


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE events SET body = body || ' ' WHERE seq = 2", "event 2, before the checkpoint of round 1"),
        ("DELETE FROM events WHERE seq = 1", "event 1, before the checkpoint of round 1"),
        ("DELETE FROM events WHERE seq > 2", "event 3, before the checkpoint of round 1"),
        ("UPDATE checkpoints SET at = at + 1", "the checksum of round 1 in its table checkpoints"),
        ("UPDATE meta SET value = 'b' WHERE key = 'run'", "the checksum of 'run' in its table meta"),
        ("UPDATE meta SET value = '1' WHERE key = 'version'", "the checksum of 'version' in its table meta"),
        ("UPDATE meta SET key = X'ff00' WHERE key = 'run'", "the checksum of b"),
        ("UPDATE meta SET value = CAST(X'ff00' AS TEXT) WHERE key = 'run'", "the checksum of 'run'"),
        ("DELETE FROM meta WHERE key = 'version'", "its version is missing"),
        ("ALTER TABLE events DROP COLUMN bytes_up", "its tables are not those of a journal"),
        ("PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'events'", "its tables are not those"),
    ],
)
def test_other_damage_is_named(statement: str, what: str, journal: Journal, path: Path) -> None:
    for event in EVENTS:
        journal.append(event, Traffic())
    journal.set_meta("run", "a")
    journal.save(stored(1, 3, row(1), Traffic()))
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(statement)
    with pytest.raises(RunFolderError, match=f"journal.sqlite is damaged.*{what}.*Restore the file from a backup"):
        Journal(path)


def test_a_value_is_verified_when_another_process_looks_at_it(journal: Journal, path: Path) -> None:
    journal.set_meta("run", "a")
    change(path, "UPDATE meta SET value = 'b' WHERE key = 'run'")
    with pytest.raises(RunFolderError, match=r"journal.sqlite is damaged.*'run'"):
        peek_meta(path, "run")


def test_an_index_that_lost_its_entry_is_found(path: Path) -> None:
    """A value that a search does not find would otherwise count as never stored."""
    with closing(Journal(path)) as journal:
        journal.set_meta("epoch", "7")
    with closing(sqlite3.connect(path)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_meta_1'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    at = content.index(b"epoch", (page - 1) * size)
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"journal.sqlite is damaged"):
        Journal(path)


def test_a_full_disk_is_named_and_nothing_is_lost(journal: Journal, path: Path) -> None:
    journal.append(EVENTS[0], Traffic())
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size, limit[1]))
    try:
        with pytest.raises(RunFolderError, match=r"journal.sqlite cannot be used: .*Free disk space.*resume"):
            journal.append(EVENTS[1], Traffic())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with closing(Journal(path)) as other:
        assert [event for _, event in other.events_after(0)] == EVENTS[:1]
        other.append(EVENTS[1], Traffic())
        assert [event for _, event in other.events_after(0)] == EVENTS[:2]


def test_a_locked_journal_names_the_other_program(path: Path) -> None:
    with pytest.raises(RunFolderError, match="Close the other program that uses it, then run"), journal_errors(path):
        raise sqlite3.OperationalError("database is locked")


def test_a_journal_that_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.sqlite"
    path.touch()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read every file
    with pytest.raises(RunFolderError, match=r"cannot be read\. Let this user"), journal_errors(path):
        raise sqlite3.OperationalError("unable to open database file")


def test_a_path_that_is_too_long_for_sqlite_is_the_reason(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*3 * ["a" * 200])
    folder.mkdir(parents=True)
    with pytest.raises(
        RunFolderError, match=r"whose path has more than 500 characters\. Choose a folder with a shorter"
    ):
        Journal(folder / "journal.sqlite")


def test_a_file_whose_making_was_killed_is_rolled_back(tmp_path: Path) -> None:
    """Its rollback journal is still there, and only a connection that may write can use it."""
    made, found = tmp_path / "made", tmp_path / "found"
    with closing(sqlite3.connect(made, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN")
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(str(i), "x" * 4000) for i in range(50)])
        for suffix in ("", "-journal"):
            found.with_name(found.name + suffix).write_bytes(made.with_name(made.name + suffix).read_bytes())
    assert peek_meta(found, "run") is None
