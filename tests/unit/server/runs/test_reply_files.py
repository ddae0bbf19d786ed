"""Replies in segments: found again after a restart, up to one that was not written whole."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt_server.runs.reply_files import ReplyFiles, reply_name


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(files: ReplyFiles, client: int, content: bytes) -> str:
    name = reply_name(client, 1, 0, digest_of(content))
    files.append(name, content)
    return name


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.binary(max_size=300), max_size=5), min_size=1, max_size=4), st.data())
def test_what_was_written_is_found_after_a_crash(batches: list[list[bytes]], data: st.DataObject) -> None:
    """The last segment may be cut anywhere behind its last sync."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        files, written = ReplyFiles(Path(place)), {}
        stack.callback(files.end_segment)  # hypothesis may stop a test where it draws
        for number, batch in enumerate(batches):
            for client, content in enumerate(batch):
                written[write(files, 10 * number + client, content)] = content
            files.sync()
            if data.draw(st.booleans()):
                files.end_segment()
        lost = {write(files, 100 + client, content) for client, content in enumerate([b"a" * 200, b"b"])}
        segment = files._segment
        files.end_segment()
        start = min(files.find(name).start for name in lost) - 128
        with segment.open("r+b") as file:
            file.truncate(data.draw(st.integers(start, segment.stat().st_size)))
        again = ReplyFiles(Path(place))
        for name, content in written.items():
            found = again.find(name)
            assert found.read() == content
            assert found.find_damage(digest_of(content)) is None
        write(again, 200, b"after the crash")
        again.end_segment()
        assert set(written) < set(ReplyFiles(Path(place))._places)


def test_a_reply_that_was_damaged_is_written_again(tmp_path: Path) -> None:
    files = ReplyFiles(tmp_path)
    name, other = write(files, 1, b"reply of client 1"), write(files, 2, b"reply of client 2")
    place = files.find(name)
    place.path.write_bytes(place.path.read_bytes().replace(b"client 1", b"client 3"))
    assert place.find_damage(digest_of(b"reply of client 1")) is not None
    files.forget(name)
    assert not files.find(name).path.exists()
    write(files, 1, b"reply of client 1")
    files.end_segment()
    again = ReplyFiles(tmp_path)
    assert again.find(name).read() == b"reply of client 1"
    assert again.find(other).read() == b"reply of client 2"


def test_a_segment_that_is_gone_or_cut_is_damage(tmp_path: Path) -> None:
    files = ReplyFiles(tmp_path)
    name = write(files, 1, b"reply")
    place = files.find(name)
    place.path.write_bytes(place.path.read_bytes()[: place.start + 2])
    assert place.find_damage(digest_of(b"reply")) == "is damaged: its content does not have the digest of its name"
    place.path.unlink()
    assert place.find_damage(digest_of(b"reply")) == "cannot be read: No such file or directory"
    files.end_segment()


def test_a_full_disk_loses_no_reply_that_was_written(tmp_path: Path) -> None:
    files = ReplyFiles(tmp_path)
    name = write(files, 1, b"reply")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(files, 2, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    later = write(files, 2, bytes(1000))
    files.end_segment()
    again = ReplyFiles(tmp_path)
    assert again.find(name).read() == b"reply"
    assert again.find(later).read() == bytes(1000)


def test_clearing_deletes_segments_and_returns_the_other_files(tmp_path: Path) -> None:
    files = ReplyFiles(tmp_path)
    name, large = write(files, 1, b"reply"), files.path(reply_name(2, 1, 0, "ab" * 32))
    large.write_bytes(b"a large one")
    assert files.clear() == list(tmp_path.iterdir()) == [large]
    assert files.find(name).size is None


def test_a_segment_that_ends_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sync`` then has nothing to do for its replies, which count as durable."""
    synced = list[int]()
    monkeypatch.setattr("fedquilt_server.runs.reply_files._sync_data", synced.append)
    files = ReplyFiles(tmp_path)
    write(files, 0, b"a")
    files.forget(write(files, 1, b"damaged"))
    assert len(synced) == 1
    files.sync()
    assert len(synced) == 1
    files.close()
