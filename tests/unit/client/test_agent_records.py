"""The record of a client's reply and memories: damaged, lost, or of an earlier version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.agent_store import CLIENT, check_whole, commit, known, memory, open_store

from fedquilt_client.records import ClientRecord, StoredMemory, write_record
from fedquilt_common.errors import RunFolderError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a client with two replies, and memory after each."""
    store = open_store(tmp_path)
    commit(store, 1)
    commit(store, 2)
    return store.folder / "clients" / str(CLIENT)


def test_a_lost_record_with_memory_is_named(home: Path, tmp_path: Path) -> None:
    (home / "committed.json").unlink()
    store = open_store(tmp_path)
    with pytest.raises(RunFolderError, match=r"committed\.json is missing or too old: .*delete its folder"):
        store.memory(CLIENT, (2, 0))
    assert store.memory(CLIENT, None) is None


def test_a_record_that_its_owner_restores_is_read(home: Path, tmp_path: Path) -> None:
    record = (home / "committed.json").read_bytes()
    (home / "committed.json").unlink()
    store = open_store(tmp_path)
    known(store, 2)
    (home / "committed.json").write_bytes(record)
    commit(store, 3)
    assert (memory(store, 2), memory(store, 3)) == ("memory 2", "memory 3")


def test_a_folder_that_its_owner_deletes_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    commit(store, 1, memory=False)
    shutil.rmtree(store.folder / "clients" / str(CLIENT))
    assert commit(store, 2, memory=False) == known(store, 2)


def test_a_record_that_cannot_be_read_is_not_damaged(home: Path, tmp_path: Path) -> None:
    """Its remedy is not to delete its folder."""
    content = (home / "committed.json").read_bytes()
    (home / "committed.json").unlink()
    (home / "committed.json").mkdir()  # EISDIR stands for any error, as this test may run as root
    with pytest.raises(RunFolderError, match=r"committed\.json cannot be used: Is a directory") as error:
        known(open_store(tmp_path), 2)
    assert "delete" not in str(error.value)
    (home / "committed.json").rmdir()
    (home / "committed.json").write_bytes(content)
    assert known(open_store(tmp_path), 2) is not None


def flip(path: Path, place: float) -> None:
    """Flip one bit; ``place`` is a fraction of the file."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [number / 40 for number in range(41)])
def test_a_flipped_bit_in_the_record_never_passes(home: Path, tmp_path: Path, place: float) -> None:
    flip(home / "committed.json", place)
    with pytest.raises(RunFolderError, match=r"committed\.json is damaged.*delete its folder"):
        known(open_store(tmp_path), 2)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b'{"sha256": "x", "record": {}}', b"[" * 100_000]
)
def test_a_damaged_record_with_memory_is_named(home: Path, tmp_path: Path, content: bytes) -> None:
    (home / "committed.json").write_bytes(content)
    store = open_store(tmp_path)
    for use in (lambda: known(store, 2), lambda: commit(store, 3), lambda: memory(store, 2)):
        with pytest.raises(RunFolderError, match=r"committed\.json is damaged"):
            use()


def test_a_client_without_memory_needs_no_record(tmp_path: Path) -> None:
    """The names of its replies suffice, also after its board has started again."""
    store = open_store(tmp_path)
    replies = {number: commit(store, number, memory=False) for number in (1, 2)}
    home = store.folder / "clients" / str(CLIENT)
    assert sorted(path.name for path in home.iterdir()) == sorted(reply.file for reply in replies.values())
    again = open_store(tmp_path)
    assert {number: known(again, number) for number in (1, 2)} == replies
    assert again.memory(CLIENT, (2, 0)) is None
    commit(again, 3)
    assert (home / "committed.json").exists()
    assert (known(again, 2), memory(again, 3)) == (replies[2], "memory 3")


def test_a_damaged_record_of_a_client_without_memory_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    reply = commit(store, 1, memory=False)
    record = store.folder / "clients" / str(CLIENT) / "committed.json"
    write_record(record.parent, ClientRecord((reply,), (StoredMemory((1, 0)),)))
    store = open_store(tmp_path)
    assert known(store, 1) == reply
    record.write_text(record.read_text()[:50])
    assert known(store, 1) == reply
    assert "deleting it, because client 3 has no private memory" in caplog.text
    assert not record.exists()


def test_a_record_of_an_earlier_version_is_read(home: Path, tmp_path: Path) -> None:
    record = json.loads((home / "committed.json").read_text())["record"]
    old = [[*memory["after"], memory["file"]] for memory in record["memories"]]
    (home / "committed.json").write_text(json.dumps({**record, "memories": old}))
    store = open_store(tmp_path)
    assert known(store, 2) is not None
    assert memory(store, 2) == "memory 2"
    commit(store, 3)
    assert check_whole(open_store(tmp_path)) == 3


def test_a_forgotten_reply_leaves_the_memory(home: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reply = known(store, 2)
    assert reply is not None
    store.forget(reply)
    assert known(store, 2) is None
    assert not (home / reply.file).exists()
    assert memory(store, 1) == "memory 1"
    assert commit(store, 2) == reply
    assert memory(store, 2) == "memory 2"
