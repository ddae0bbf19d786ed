"""Any payload arrives intact in any order of its chunks; invalid headers and chunks are refused without damage."""

from __future__ import annotations

import os
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt_common.errors import DamagedTransferError, PayloadError
from fedquilt_common.files.digests import DigestKind, digest_bytes, digest_file
from fedquilt_common.wire.chunks import (
    CHUNK,
    MAX_CHUNKS,
    MAX_HEAD,
    Assembly,
    Blob,
    ChunkHeader,
    check_steps,
    read_chunk,
)
from fedquilt_common.wire.link import SMALLEST_LINK_PAYLOAD

DIGEST = "5e" * 32


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder for one example; hypothesis does not renew ``tmp_path``."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def blob_of(place: Path, payload: bytes, kind: DigestKind = "xxh3") -> Blob:
    path = place / "payload"
    path.write_bytes(payload)
    return Blob(path, digest_bytes(payload, kind), len(payload))


def cut(payload: bytes, headers: list[ChunkHeader]) -> dict[int, bytes]:
    return {h.index: payload[h.offset : h.offset + h.length] for h in headers}


PAYLOADS = st.binary(min_size=1, max_size=300)
CHUNKS = st.integers(1, 320)
KINDS = st.sampled_from(get_args(DigestKind))


@given(PAYLOADS, CHUNKS)
def test_headers_tile_the_payload(payload: bytes, chunk: int) -> None:
    headers = Blob(Path("x"), DIGEST, len(payload)).headers(chunk)
    ends = [h.offset + h.length for h in headers]
    assert [h.offset for h in headers] == [0, *ends[:-1]]
    assert ends[-1] == len(payload)
    assert all(1 <= h.length <= chunk for h in headers)
    assert [h.index for h in headers] == list(range(len(headers)))
    assert {(h.count, h.size, h.digest) for h in headers} == {(len(headers), len(payload), DIGEST)}
    assert Blob(Path("x"), DIGEST, len(payload)).headers(chunk, 1, 2) == headers[1:3]


@given(size=st.integers(1, 2**30), chunk=st.integers(2**19, 2**28))
def test_the_fewest_chunks_of_equal_size(size: int, chunk: int) -> None:
    headers = Blob(Path("x"), DIGEST, size).headers(chunk)
    assert len(headers) == max(-(-size // chunk), min(48, -(-size // CHUNK)))
    assert {h.length for h in headers[:-1]} <= {headers[0].step}


@settings(deadline=None)
@given(PAYLOADS, CHUNKS, st.none() | st.binary(max_size=2000), KINDS, st.data())
def test_any_order_with_duplicates_gives_the_same_bytes(
    payload: bytes, chunk: int, spare: bytes | None, kind: DigestKind, data: st.DataObject
) -> None:
    with folder() as place:
        blob = blob_of(place, payload, kind)
        headers = blob.headers(chunk)
        parts = cut(payload, headers)
        again = data.draw(st.lists(st.sampled_from(headers), max_size=10))
        arrivals = data.draw(st.permutations([*headers, *again]))
        over = None if spare is None else place / "spare"
        if over is not None:
            over.write_bytes(spare or b"")
        assembly = Assembly(place / "in" / "partial", arrivals[0], len(payload), durable=True, over=over)
        lacking = set(range(len(headers)))
        for header in arrivals:
            assert assembly.missing == lacking
            assert assembly.find_first_missing() == min(lacking, default=assembly.count)
            lacking.discard(header.index)
            assert assembly.add(ChunkHeader.decode(header.encode()), parts[header.index]) is (not lacking)
        finished = assembly.finish(place / "out" / "whole")
        assert finished == Blob(place / "out" / "whole", blob.digest, len(payload))
        assert finished.path.read_bytes() == payload
        assert not (place / "in" / "partial").exists()
        assert over is None or not over.exists()


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.binary(max_size=1000), CHUNKS, st.data())
def test_a_head_travels_with_the_first_chunk(head: bytes, numbers: bytes, chunk: int, data: st.DataObject) -> None:
    with folder() as place:
        blob = replace(blob_of(place, head + numbers), head=len(head))
        headers = blob.headers(chunk)
        assert [header.head for header in headers] == [head, *[b""] * (len(headers) - 1)]
        assert sum(header.length for header in headers) == len(numbers) == headers[0].size
        arrivals = data.draw(st.permutations(headers))
        assembly = Assembly(place / "in" / "partial", arrivals[0], len(numbers))
        with blob.path.open("rb") as file:
            for header in arrivals:
                payload = read_chunk(file.fileno(), header, blob.head)
                whole = assembly.add(ChunkHeader.decode(header.encode()), payload)
        assert whole
        finished = assembly.finish(place / "out" / "whole")
        assert finished == replace(blob, path=finished.path)
        assert finished.path.read_bytes() == head + numbers


def test_only_the_first_chunk_has_a_head_and_a_short_one() -> None:
    for wrong in ((DIGEST, 1, 2, 10, b"h"), (DIGEST, 0, 1, 10, b"h" * (MAX_HEAD + 1)), (DIGEST, 0, 1, 0, b"")):
        with pytest.raises(PayloadError):
            ChunkHeader(*wrong)


@given(PAYLOADS, CHUNKS)
def test_chunks_are_read_from_the_file(payload: bytes, chunk: int) -> None:
    with folder() as place:
        blob = blob_of(place, payload)
        descriptor = os.open(blob.path, os.O_RDONLY)
        try:
            read = [read_chunk(descriptor, header) for header in blob.headers(chunk)]
        finally:
            os.close(descriptor)
        assert b"".join(read) == payload
        assert digest_file(blob.path, "xxh3") == blob.digest


@given(
    st.binary(max_size=80)
    | st.binary(min_size=48, max_size=48).map(lambda rest: b"\x01" + rest)
    | st.binary(min_size=32, max_size=32).map(lambda rest: b"\x02" + rest)
)
def test_random_headers(data: bytes) -> None:
    try:
        header = ChunkHeader.decode(data)
    except PayloadError:
        return
    assert header.encode() == data
    assert 0 < header.count <= MAX_CHUNKS
    assert 0 <= header.offset <= header.offset + header.length <= header.size
    assert header.length or header.head  # only a head may come without a payload


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_random_numbers(index: int, count: int, size: int) -> None:
    data = struct.pack(">B32sIIQ", 1, bytes.fromhex(DIGEST), index, count, size)
    try:
        header = ChunkHeader.decode(data)
    except PayloadError:
        return
    last = replace(header, index=count - 1)
    assert last.offset + last.length == size  # a transfer with a valid header can be completed


IMPOSSIBLE = {
    "no chunks": (0, 0, 10),
    "no bytes": (0, 1, 0),
    "index is count": (2, 2, 10),
    "more chunks than bytes": (0, 11, 10),
    "the last chunk would be empty": (0, 6, 10),
    "too many chunks": (0, MAX_CHUNKS + 1, 2**40),
}


@pytest.mark.parametrize("numbers", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_numbers(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(PayloadError, match="cannot exist"):
        ChunkHeader(DIGEST, *numbers)


def test_negative_index() -> None:
    with pytest.raises(PayloadError, match="cannot exist"):
        ChunkHeader(DIGEST, -1, 2, 10)


@pytest.mark.parametrize(("digest", "version", "size"), [("5e" * 32, 1, 49), ("5e" * 16, 2, 33)])
def test_the_version_of_a_header_says_which_digest_it_has(digest: str, version: int, size: int) -> None:
    header = ChunkHeader(digest, 1, 2, 10)
    encoded = header.encode()
    assert (encoded[0], len(encoded)) == (version, size)
    assert ChunkHeader.decode(encoded) == header
    with pytest.raises(PayloadError, match=f"of version {version} has {size - 1} bytes instead of {size}"):
        ChunkHeader.decode(encoded[:-1])


@pytest.mark.parametrize(("data", "version"), [(b"\x03" + bytes(48), 3), (bytes(49), 0)])
def test_other_header_versions(data: bytes, version: int) -> None:
    with pytest.raises(PayloadError, match=f"version {version}, this program supports 2 at most: install the same"):
        ChunkHeader.decode(data)


def test_a_chunk_without_a_header() -> None:
    with pytest.raises(PayloadError, match="has no header"):
        ChunkHeader.decode(b"")


def test_the_limit_is_checked_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="1001 bytes is larger than the 1000 bytes expected"):
        Assembly(tmp_path / "in" / "partial", ChunkHeader(DIGEST, 0, 1, 1001), 1000)
    assert list(tmp_path.iterdir()) == []
    Assembly(tmp_path / "partial", ChunkHeader(DIGEST, 0, 1, 1000), 1000).discard()


PAYLOAD = bytes(range(100))


@pytest.fixture
def headers() -> list[ChunkHeader]:
    return Blob(Path("x"), digest_bytes(PAYLOAD, "xxh3"), 100).headers(40)


@pytest.mark.parametrize("change", [{"digest": DIGEST}, {"count": 2}, {"size": 101}], ids=str)
def test_chunks_of_another_transfer(tmp_path: Path, headers: list[ChunkHeader], change: dict[str, Any]) -> None:
    assembly = Assembly(tmp_path / "partial", headers[0], 100)
    stray = replace(headers[0], **change)
    with pytest.raises(PayloadError, match="another transfer"):
        assembly.add(stray, bytes(stray.length))
    finish_well(assembly, headers, tmp_path)


@pytest.mark.parametrize("length", [0, 1, 33, 35, 1000])
def test_chunks_of_wrong_length(tmp_path: Path, headers: list[ChunkHeader], length: int) -> None:
    assembly = Assembly(tmp_path / "partial", headers[0], 100)
    assert headers[0].length == 34
    with pytest.raises(PayloadError, match=f"chunk 0 has {length} bytes instead of 34"):
        assembly.add(headers[0], bytes(length))
    assert (tmp_path / "partial").stat().st_size == 0
    finish_well(assembly, headers, tmp_path)


def finish_well(assembly: Assembly, headers: list[ChunkHeader], place: Path) -> None:
    """A refused chunk has not changed the others."""
    for header in headers:
        assembly.add(header, cut(PAYLOAD, headers)[header.index])
    assert assembly.finish(place / "whole").path.read_bytes() == PAYLOAD


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_wrong_bytes_leave_nothing_behind(tmp_path: Path, headers: list[ChunkHeader], order: list[int]) -> None:
    assembly = Assembly(tmp_path / "partial", headers[0], 100)
    for index in order:
        assembly.add(headers[index], bytes(headers[index].length))
    with pytest.raises(PayloadError, match="do not have the announced digest"):
        assembly.finish(tmp_path / "whole")
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_transfer_does_not_pass_for_a_whole(tmp_path: Path, headers: list[ChunkHeader]) -> None:
    assembly = Assembly(tmp_path / "partial", headers[0], 100)
    assembly.add(headers[0], PAYLOAD[:34])
    with pytest.raises(PayloadError):
        assembly.finish(tmp_path / "whole")
    assert list(tmp_path.iterdir()) == []


def test_an_old_partial_file_is_replaced(tmp_path: Path, headers: list[ChunkHeader]) -> None:
    (tmp_path / "partial").write_bytes(b"x" * 500)
    finish_well(Assembly(tmp_path / "partial", headers[2], 100), headers, tmp_path)


def test_a_write_in_pieces(tmp_path: Path, headers: list[ChunkHeader], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full writes fewer bytes without an error, so the hash would not be that of the file."""
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, bytes(data)[:10], offset))
    finish_well(Assembly(tmp_path / "partial", headers[0], 100), headers, tmp_path)


def test_memory_for_the_smallest_chunks_is_bounded(tmp_path: Path) -> None:
    first = ChunkHeader(DIGEST, 0, MAX_CHUNKS, 2 * MAX_CHUNKS)
    tracemalloc.start()
    try:
        assembly = Assembly(tmp_path / "partial", first, 2 * MAX_CHUNKS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assembly.discard()
    assert peak < MAX_CHUNKS // 4


@given(st.integers(1, 10**9), st.integers(SMALLEST_LINK_PAYLOAD, 10**6))
def test_chunks_for_any_link_are_large_enough(size: int, largest: int) -> None:
    """``MAX_CHUNKS`` limits the number of chunks."""
    chunk = max(largest, -(-size // MAX_CHUNKS))
    for header in Blob(Path("x"), DIGEST, size).headers(chunk, most=2):
        check_steps(header)


def test_chunks_that_are_too_small_are_refused() -> None:
    check_steps(ChunkHeader(DIGEST, 0, 1, 1))
    with pytest.raises(PayloadError, match="14 bytes in 2 chunks: each must have 8 bytes or more"):
        check_steps(ChunkHeader(DIGEST, 0, 2, 14))


def test_a_chunk_that_the_disk_refused_may_come_again_with_other_bytes(tmp_path: Path) -> None:
    """The digest of what was refused must not stand for what is in the file."""
    blob = blob_of(tmp_path, b"right" * 20)
    headers = blob.headers(50)
    parts = cut(b"right" * 20, headers)
    assembly = Assembly(tmp_path / "partial", headers[0], 100)
    with patch.object(os, "pwrite", side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        assembly.add(headers[0], parts[0])
    assembly.add(headers[0], bytes(50))
    assert assembly.add(headers[1], parts[1])
    with pytest.raises(DamagedTransferError):
        assembly.finish(tmp_path / "whole")
