"""Blobs by digest: durable, never half written, gone when they are no longer needed."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError, RunFolderError
from fedquilt_common.files.digests import digest_bytes
from fedquilt_common.types import Precision
from fedquilt_common.wire.chunks import Assembly, ChunkHeader
from fedquilt_server.round.events import Replied
from fedquilt_server.runs import reply_files
from fedquilt_server.runs.blob_store import BlobStore, DamagedReplyError
from fedquilt_server.runs.reply_files import reply_name

ARRAYS: dict[str, NDArray[Any]] = {"a": np.arange(5, dtype=np.float32), "b": np.zeros((2, 0), np.int64)}


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(store: BlobStore) -> set[str]:
    return {str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if path.is_file()}


def reply(client: int = 3, digest: str = "cd" * 32) -> Replied:
    return Replied(1.0, "pi", client, 2, 1, digest, 1.0)


def test_a_blob_is_named_by_what_is_in_it(store: BlobStore) -> None:
    blob = store.put(ARRAYS)
    assert digest_bytes(blob.path.read_bytes(), "xxh3") == blob.digest == blob.path.name
    assert blob.size == blob.path.stat().st_size
    assert store.blob(blob.digest) == blob
    found = store.arrays(blob.digest)
    assert {name: found[name].tolist() for name in found} == {"a": [0, 1, 2, 3, 4], "b": [[], []]}


def test_equal_arrays_are_one_file_and_nothing_is_left_unfinished(store: BlobStore) -> None:
    one, other = store.put(ARRAYS), store.put(dict(reversed(ARRAYS.items())))
    assert one == other
    assert files(store) == {one.digest}


def test_a_precision_makes_another_blob(store: BlobStore) -> None:
    assert len({store.put(ARRAYS, precision).digest for precision in get_args(Precision)}) == 3


def test_of_soft_labels_the_head_is_known(store: BlobStore) -> None:
    blob = store.put(ARRAYS, labels=True)
    assert blob.digest == store.put(ARRAYS).digest
    assert blob.size - blob.head == sum(x.nbytes for x in ARRAYS.values())


def test_an_array_of_a_state_that_is_read_while_its_file_is_replaced_stays_whole(store: BlobStore) -> None:
    digest = store.put(ARRAYS).digest
    before = store.arrays(digest)["a"]
    store.put(ARRAYS)
    assert before.tolist() == [0, 1, 2, 3, 4]


def test_a_blob_that_is_gone_is_named(store: BlobStore) -> None:
    for attempt in (lambda: store.blob("ab" * 32), lambda: store.verify(reply())):
        with pytest.raises(RunFolderError, match=r"(ab){32}|(cd){32}.* cannot be read: No such file"):
            attempt()
    with pytest.raises(RunFolderError, match=r"(ab){32} cannot be used: No such file"):
        store.arrays("ab" * 32)


def test_a_blob_with_a_flipped_bit_is_named_with_a_remedy(store: BlobStore) -> None:
    blob = store.put(ARRAYS)
    content = bytearray(blob.path.read_bytes())
    content[-1] ^= 1
    blob.path.write_bytes(content)
    remedy = r"its content does not have the digest of its name\. Restore the file from a backup"
    with pytest.raises(RunFolderError, match=f"{blob.digest} is damaged: {remedy}"):
        store.blob(blob.digest)
    assert store.put(ARRAYS) == store.blob(blob.digest)


def test_a_damaged_reply_is_named_and_can_be_sent_again(store: BlobStore) -> None:
    blob = store.put(ARRAYS)
    event = reply(digest=blob.digest)
    path = store.replies.path(reply_name(3, 2, 1, blob.digest))
    path.write_bytes(blob.path.read_bytes()[:-1])
    with pytest.raises(
        DamagedReplyError, match=f"{path}, the reply of client 3 to round 2, exchange 1, is dam"
    ) as found:
        store.verify(event)
    assert found.value.event == event
    store.discard(found.value)
    store.discard(found.value)
    assert not path.exists()
    path.write_bytes(blob.path.read_bytes())
    assert store.load_replies([event])[0]["a"].tolist() == [0, 1, 2, 3, 4]


def test_a_reply_that_has_just_arrived_is_read_again_only_if_its_file_changed(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = store.put(ARRAYS)
    event, content = reply(digest=blob.digest), blob.path.read_bytes()
    (header,) = blob.headers(blob.size)
    assembly = Assembly(store.partial / "1", header, blob.size, durable=True)
    assembly.add(header, content)
    kept = store.keep_reply(assembly, reply_name(3, 2, 1, blob.digest))
    with monkeypatch.context() as patch:
        patch.setattr(reply_files, "digest_file", lambda _: pytest.fail("the reply was read again"))
        assert store.load_replies([event])[0]["a"].tolist() == [0, 1, 2, 3, 4]
    kept.path.write_bytes(content[:-1])
    with pytest.raises(DamagedReplyError, match="is damaged"):
        store.load_replies([event])


def test_a_large_reply_and_its_name_are_on_the_disk_after_the_sync(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(store.partial.parent):  # not of another test
            synced.append(os.fstat(descriptor).st_ino)

    blob = store.put(ARRAYS)
    content = blob.path.read_bytes()
    (header,) = blob.headers(blob.size)
    monkeypatch.setattr(os, "fsync", note)
    assembly = store.begin_reply(header, blob.size)
    assembly.add(header, content)
    kept = store.keep_reply(assembly, reply_name(3, 2, 1, blob.digest))
    store.sync_replies()
    assert synced == [kept.path.stat().st_ino, kept.path.parent.stat().st_ino]
    store.sync_replies()
    assert len(synced) == 2


def receive(store: BlobStore, client: int, numbers: NDArray[Any]) -> Replied:
    """Return a reply with a file of its own; there is a blob with the same bytes."""
    blob = store.put({"a": numbers})
    content, event = blob.path.read_bytes(), reply(client, blob.digest)
    headers = blob.headers(blob.size)
    assembly = store.begin_reply(headers[0], blob.size)
    for header in headers:
        assembly.add(header, content[header.offset : header.offset + header.length])
    store.keep_reply(assembly, reply_name(client, 2, 1, blob.digest))
    store.sync_replies()
    return event


def test_a_reply_in_a_million_tiny_chunks_takes_no_memory_for_them(store: BlobStore) -> None:
    with pytest.raises(PayloadError, match="8 bytes or more"):
        store.begin_reply(ChunkHeader("ab" * 32, 0, 1_000_000, 2_000_000), 10_000_000)
    assert files(store) == set()


def inode(store: BlobStore, event: Replied) -> int:
    return store.replies.path(reply_name(*event.file)).stat().st_ino


def test_a_large_reply_is_written_over_one_that_nobody_needs(store: BlobStore) -> None:
    first = receive(store, 1, np.arange(400_000.0))
    old = {inode(store, first), store.path(first.digest).stat().st_ino}
    store.clean(set(), reuse=True)
    assert files(store) == {"partial/spare-1", "partial/spare-2"}
    second, third = receive(store, 2, np.ones(300_000)), receive(store, 3, np.ones(10))
    assert old == {inode(store, second), store.path(second.digest).stat().st_ino}
    assert [one["a"].sum() for one in store.load_replies([second, third])] == [300_000, 10]
    store.clean(set())
    assert files(store) == set()


def test_arrays_of_a_deleted_reply_that_are_still_in_use_stay(store: BlobStore) -> None:
    first = receive(store, 1, np.arange(400_000.0))
    used = store.load_replies([first])[0]["a"]
    store.clean(set(), reuse=True)
    receive(store, 2, np.ones(400_000))
    assert used[-1] == 399_999


def test_closing_deletes_spare_files(store: BlobStore) -> None:
    receive(store, 1, np.arange(400_000.0))
    store.clean(set(), reuse=True)
    store.close()
    assert files(store) == set()


def test_a_full_disk_is_named(store: BlobStore) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        with pytest.raises(RunFolderError, match=r"partial/writing cannot be used: File too large\. Free disk space"):
            store.put(ARRAYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    store.put(ARRAYS)


def test_nobodys_bytes_stand_for_anothers(store: BlobStore) -> None:
    """Two clients that send the same bytes have two files: deleting one leaves the other."""
    paths = {store.replies.path(reply_name(c, r, e, "cd" * 32)) for c in (1, 11) for r in (1, 11) for e in (0, 1)}
    assert len(paths) == 8
    blob = store.put(ARRAYS)
    store.replies.path(reply_name(3, 2, 1, blob.digest)).write_bytes(blob.path.read_bytes())
    assert store.load_replies([reply(digest=blob.digest)])[0]["a"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RunFolderError):
        store.verify(reply(client=4, digest=blob.digest))


def test_cleaning_keeps_what_is_named_and_nothing_else(store: BlobStore) -> None:
    kept, gone = store.put(ARRAYS), store.put({"a": np.ones(3, np.float32)})
    store.replies.path(reply_name(3, 2, 1, "cd" * 32)).write_bytes(b"reply")
    store.clean({kept.digest, ""})
    assert files(store) == {kept.digest}
    assert not gone.path.exists()
    store.put(ARRAYS)


def test_cleaning_keeps_replies_that_count_later(store: BlobStore) -> None:
    """One shares its segment with a reply that is not needed any more, the other has a file of its own."""
    blob = store.put(ARRAYS)
    events = [reply(client=client, digest=blob.digest) for client in (1, 2, 3, 4)]
    names = [reply_name(event.client, event.round, event.exchange, event.digest) for event in events]
    for name in names[:2]:
        store.replies.append(name, blob.path.read_bytes())
    for name in names[2:]:
        store.replies.path(name).write_bytes(blob.path.read_bytes())
    store.clean({blob.digest}, replies=[events[1], events[2]])
    assert files(store) == {blob.digest, "replies/segment-1", f"replies/{names[2]}"}
    assert [loaded["a"].tolist() for loaded in store.load_replies(events[1:3])] == [[0, 1, 2, 3, 4]] * 2
    store.clean({blob.digest})
    assert files(store) == {blob.digest}


def test_cleaning_leaves_transfers_that_are_under_way(store: BlobStore) -> None:
    (store.partial / "7").write_bytes(b"half")
    store.clean(set())
    assert files(store) == {"partial/7"}


def test_a_restart_throws_half_transfers_away_and_keeps_the_rest(store: BlobStore) -> None:
    kept = store.put(ARRAYS)
    (store.partial / "7").write_bytes(b"half")
    whole = store.replies.path(reply_name(3, 2, 1, "cd" * 32))
    whole.write_bytes(b"reply")
    again = BlobStore(store.folder)
    assert files(again) == {kept.digest, f"replies/{whole.name}"}
