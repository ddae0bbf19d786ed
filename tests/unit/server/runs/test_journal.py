"""The journal: what was committed is there again, whoever opens it next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_common.types import Profile
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied, Ticked
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, Traffic, peek_meta
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


def test_something_else_is_no_journal(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    for attempt in (lambda: Journal(path), lambda: peek_meta(path, "run")):
        with pytest.raises(RunFolderError, match=r"journal\.sqlite is not a fedquilt journal.*Choose another --out"):
            attempt()
    assert path.read_bytes() == b"not a database" * 100


@pytest.mark.parametrize(("version", "reason"), [("2", "newer fedquilt .journal version 2"), ("x", "not a fedquilt")])
def test_a_journal_of_another_version(version: str, reason: str, path: Path) -> None:
    with closing(Journal(path)) as made:
        assert made.meta("version") == "1"
        made.set_meta("version", version)
    with pytest.raises(RunFolderError, match=reason):
        Journal(path)
    assert peek_meta(path, "version") == version
