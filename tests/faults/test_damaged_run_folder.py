"""A file of the run folder is damaged between kill and resume: the same bits come out, or an error names the file."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.support.runs import reply_places

from fedquilt_common.errors import RunFolderError

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

    from fedquilt_common.wire.round_messages import RoundMessage
    from fedquilt_server.coordinator.coordinator import Coordinator

LIMIT = 60.0
"""Seconds after which a run counts as hung."""
Damage = Callable[[Path], object]
MakeStage = Callable[..., "Stage"]


def within_limit(turn: Callable[[], bool]) -> Callable[[], bool]:
    end = time.monotonic() + LIMIT

    def limited() -> bool:
        assert time.monotonic() < end, "the run hangs"
        return turn()

    return limited


def two_replied(coordinator: Coordinator) -> bool:
    exchange = coordinator.machine.exchange
    return coordinator.machine.done == 1 and exchange is not None and len(exchange.replies) == 2


@pytest.fixture(autouse=True, scope="module")
def quick(storage: str) -> Iterator[None]:
    """Shorten the coordinator's wait for the next message: in these tests nobody sends while it waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedquilt_server.coordinator.coordinator.STEP_SECONDS", 0.001)
        yield


@pytest.fixture(scope="module")
def killed(storage: str, tmp_path_factory: pytest.TempPathFactory, make_stage: MakeStage) -> Path:
    """Return the folder of a run that is killed in its second round, when two of three clients have replied."""
    stage = make_stage(tmp_path_factory.mktemp("killed"))
    stage.arrive()
    stage.ways[2] = lambda player, message: message.round == 1 and player.send(player.pack(2))
    coordinator = stage.coordinator()
    copy = tmp_path_factory.mktemp("copy") / "run"

    def die() -> bool:
        stage.offer()
        if two_replied(coordinator):
            shutil.copytree(stage.folder, copy)  # the journal is open, so its write-ahead log is copied too
        return copy.exists()

    with stage.closing(coordinator):
        coordinator.execute(within_limit(die))
    return copy


@pytest.fixture
def resume(killed: Path, tmp_path_factory: pytest.TempPathFactory, make_stage: MakeStage) -> Callable[[Damage], Stage]:
    """Return a function that damages a copy of the folder and resumes the run there with the same agents."""

    def damage_and_resume(damage: Damage) -> Stage:
        stage = make_stage(tmp_path_factory.mktemp("resumed"))
        shutil.copytree(killed, stage.folder)
        damage(stage.folder)
        stage.arrive()
        coordinator = stage.coordinator()
        with stage.closing(coordinator):
            coordinator.execute(within_limit(stage.offer))
            stage.rows = coordinator.run.folder.journal.results()
        return stage

    return damage_and_resume


def flip(path: Path, at: int) -> None:
    """Flip one bit; ``at`` chooses byte and bit."""
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << (at // len(content) % 8)
    path.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "first byte": lambda path: flip(path, 0),
    "quarter": lambda path: flip(path, path.stat().st_size // 4),
    "middle": lambda path: flip(path, path.stat().st_size // 2),
    "last byte": lambda path: flip(path, path.stat().st_size - 1),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}
SAME = "same bits"
FLIPS = int(os.environ.get("FEDQUILT_FLIPS", "25"))


def names(killed: Path) -> list[str]:
    return sorted(str(path.relative_to(killed)) for path in killed.rglob("*") if path.is_file() and path.stat().st_size)


def damage_file(name: str, kind: str, folder: Path) -> None:
    DAMAGES[kind](folder / name)


Outcome = Callable[[Damage, str], str]


@pytest.fixture
def outcome(resume: Callable[[Damage], Stage], undisturbed: str) -> Outcome:
    """Return a function that damages, resumes, and returns "same bits", or the name of the file to restore."""

    def outcome_of(damage: Damage, where: str) -> str:
        try:
            stage = resume(damage)
        except RunFolderError as error:
            found = re.match(r"[^ ]*/([^/ ]+) .*[Rr]estore", str(error))
            return found[1] if found else f"{where}: no advice: {error}"
        assert stage.sha256 == undisturbed, where
        assert [row.clients for row in stage.rows] == [3, 3], where
        return SAME

    return outcome_of


def test_the_folder_has_every_kind_of_file(outcome: Outcome, killed: Path) -> None:
    kinds = {name.partition("/")[0] for name in names(killed)}
    assert {"blobs", "journal.sqlite", "journal.sqlite-wal", "begun.json", "result.json"} <= kinds
    assert outcome(lambda folder: None, "undamaged") == SAME


@pytest.mark.parametrize("kind", DAMAGES)
def test_any_file_damaged(kind: str, outcome: Outcome, killed: Path) -> None:
    """Only the state and the journal exist nowhere else."""
    for name in names(killed):
        found = outcome(partial(damage_file, name, kind), name)
        file = "journal.sqlite" if name.startswith("journal.sqlite") else Path(name).name
        assert found in ({SAME, file} if file in ("journal.sqlite", killed_state(killed)) else {SAME}), name
        if file == killed_state(killed):
            assert found == file


@contextmanager
def copied_journal(folder: Path) -> Iterator[sqlite3.Connection]:
    """Read a journal without changing its files: closing the original would merge its write-ahead log."""
    with TemporaryDirectory() as copy:
        for path in folder.glob("journal.sqlite*"):
            shutil.copy(path, copy)
        with closing(sqlite3.connect(Path(copy) / "journal.sqlite")) as db:
            yield db


def killed_state(folder: Path) -> str:
    with copied_journal(folder) as db:
        (digest,) = db.execute("SELECT arrays FROM checkpoints ORDER BY round DESC LIMIT 1").fetchone()
    return str(digest)


def cells(folder: Path) -> list[tuple[str, str, str, int]]:
    """Return table, key column, column and key of each field of the journal."""
    found = []
    with copied_journal(folder) as db:
        for table in ("meta", "events", "checkpoints"):
            columns = [name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            keys = [key for (key,) in db.execute(f"SELECT {columns[0]} FROM {table}")]  # noqa: S608
            found += [(table, columns[0], column, key) for key in keys for column in columns]
    return found


def change_cell(cell: tuple[str, str, str, int], folder: Path) -> None:
    """Flip a bit of one field."""
    table, key_column, column, key = cell
    with closing(sqlite3.connect(folder / "journal.sqlite")) as db, db:
        (value,) = db.execute(f"SELECT {column} FROM {table} WHERE {key_column} = ?", (key,)).fetchone()  # noqa: S608
        changed = chr(ord(value[0]) ^ 1) + value[1:] if isinstance(value, str) and value else (value or 0) + 64
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {key_column} = ?", (changed, key))  # noqa: S608


def test_any_field_of_the_journal_damaged(outcome: Outcome, killed: Path) -> None:
    """Only events after the last checkpoint can be dropped."""
    with copied_journal(killed) as db:
        (last,) = db.execute("SELECT max(seq) FROM checkpoints").fetchone()
    assert len(cells(killed)) > 80
    for cell in cells(killed):
        table, _, _, key = cell
        found = outcome(partial(change_cell, cell), str(cell))
        assert found == (SAME if table == "events" and key > last else "journal.sqlite"), cell


def test_a_weight_damaged_after_the_checkpoint(
    outcome: Outcome, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "journal.sqlite")) as db, db:
            query = "SELECT seq, body FROM events WHERE kind = 'Replied' ORDER BY seq DESC LIMIT 1"
            seq, body = db.execute(query).fetchone()
            changed = body.replace('"weight":', '"weight":9')
            assert db.execute("UPDATE events SET body = ? WHERE seq = ?", (changed, seq)).rowcount == 1

    assert outcome(damage, "weight") == SAME
    found = re.search(
        r"journal.sqlite: event (\d+) .Replied. differs from its checksum: dropped the last 1", caplog.text
    )
    assert found, caplog.text


@pytest.mark.parametrize("file", ["journal.sqlite", "journal.sqlite-wal"])
def test_any_bit_of_the_journal(file: str, outcome: Outcome) -> None:
    """Seeded places in the file, with the write-ahead log as the kill left it, and after SQLite has merged it."""

    def damage(bit: int, folder: Path) -> None:
        if file == "journal.sqlite":
            with closing(sqlite3.connect(folder / file)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        flip(folder / file, bit)

    for number in range(FLIPS):
        bit = random.Random(f"{file} {number}").randrange(1 << 40)
        found = outcome(partial(damage, bit), f"{file}: bit {bit}")
        assert found in (SAME, "journal.sqlite", "begun.json"), bit


def replies_on_disk(coordinator: Coordinator) -> list[Path]:
    return sorted(coordinator.run.folder.blobs.replies.folder.iterdir())


def restarts(folder: Path) -> int:
    with copied_journal(folder) as db:
        return int(db.execute("SELECT count(*) FROM events WHERE kind = 'RoundRestarted'").fetchone()[0])


def hold_client_2(stage: Stage, *, only_once: bool = False) -> Callable[[], object]:
    """Keep back client 2's reply to round 2 until the function that this returns is called.

    Args:
        stage: of the run.
        only_once: whether the function sends the reply of now, and later ones are kept back again.
    """
    held = True
    player = stage.players["jetson"]

    def reply(player: Player, message: RoundMessage) -> object:
        return None if held and message.round == 2 else player.send(player.pack(2))

    def release() -> object:
        nonlocal held
        held = only_once
        return player.send(player.pack(2))

    stage.ways[2] = reply
    return release


@pytest.mark.parametrize("kind", ["quarter", "cut", "gone"])
def test_a_reply_damaged_while_the_run_goes_on(
    kind: str, stage: Stage, undisturbed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is found when the exchange closes; every client answers the same task again."""
    stage.arrive()
    release = hold_client_2(stage)
    coordinator = stage.coordinator()
    damaged: list[str] = []

    def turn() -> bool:
        stage.offer()
        if two_replied(coordinator) and not damaged:
            path = replies_on_disk(coordinator)[0]
            damaged.append(path.name)
            DAMAGES[kind](path)
            release()
        return False

    with stage.closing(coordinator):
        coordinator.execute(within_limit(turn))
        assert [row.replies for row in coordinator.run.folder.journal.results()] == [3, 3]
    assert stage.sha256 == undisturbed
    assert restarts(stage.folder) == 1
    assert re.search(f"{damaged[0]}, the reply of client [01] to round 2, exchange 0, ", caplog.text)


def test_killed_after_the_round_has_started_again(
    make_stage: MakeStage, undisturbed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The replies before the restart are skipped, also if a second file is damaged meanwhile."""
    stage = make_stage(tmp_path_factory.mktemp("first"))
    stage.arrive()
    release = hold_client_2(stage, only_once=True)
    coordinator = stage.coordinator()
    released: list[bool] = []

    def turn() -> bool:
        stage.offer()
        if two_replied(coordinator) and not released:
            released.append(True)
            DAMAGES["cut"](replies_on_disk(coordinator)[-1])
            release()
        exchange = coordinator.machine.exchange
        return restarts(stage.folder) == 1 and exchange is not None and len(exchange.replies) == 2

    with stage.closing(coordinator):
        coordinator.execute(within_limit(turn))
    assert not (stage.folder / "global.safetensors").exists()
    for damage in (None, "quarter", "gone"):
        again = make_stage(tmp_path_factory.mktemp("again"))
        shutil.copytree(stage.folder, again.folder)
        for path in (again.folder / "blobs" / "replies").iterdir():
            if damage is not None:
                DAMAGES[damage](path)
        again.arrive()
        coordinator = again.coordinator()
        with again.closing(coordinator):
            coordinator.execute(within_limit(again.offer))
        assert again.sha256 == undisturbed, damage
        assert restarts(again.folder) == (1 if damage is None else 2), damage


def test_a_reply_damaged_after_a_kill_before_the_checkpoint(
    make_stage: MakeStage, undisturbed: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has every reply of the round, so the recovery would close it from the files."""
    stage = make_stage(tmp_path_factory.mktemp("first"))
    stage.arrive()
    coordinator = stage.coordinator()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator.run, "save_round", die)
    with stage.closing(coordinator), pytest.raises(KeyboardInterrupt):
        coordinator.execute(within_limit(stage.offer))
    for number in range(3):
        again = make_stage(tmp_path_factory.mktemp("again"))
        shutil.copytree(stage.folder, again.folder)
        place = reply_places(again.folder / "blobs" / "replies")[number]
        flip(place.path, place.start + 1234)
        again.arrive()
        coordinator = again.coordinator()
        with again.closing(coordinator):
            coordinator.execute(within_limit(again.offer))
        assert again.sha256 == undisturbed
        assert restarts(again.folder) == 1
