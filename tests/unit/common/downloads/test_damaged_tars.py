"""Tar archives with damaged headers or without an end: tarfile alone takes what is before the damage for all of it."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedquilt_common.datasets.archives import read_files
from fedquilt_common.downloads.unpack import unpack
from fedquilt_common.errors import DataUnavailableError

BLOCK, EACH = tarfile.BLOCKSIZE, 4 * tarfile.BLOCKSIZE
"""Bytes of a block, and of a member with its header."""


def make_tar() -> bytes:
    """Return an archive of three files that cannot be packed smaller."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("a", "b", "c"):
            info = tarfile.TarInfo(name)
            info.size = EACH - BLOCK - 10
            archive.addfile(info, io.BytesIO(random.Random(name).randbytes(info.size)))
    return buffer.getvalue()


WHOLE = make_tar()


def change(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "data",
    [
        change(WHOLE, EACH), change(WHOLE, 2 * EACH + 3), WHOLE[:EACH], WHOLE[: EACH + 100], WHOLE[: EACH + 700],
        WHOLE[: 3 * EACH], WHOLE[: 3 * EACH + BLOCK - 1],
    ],
    ids=["header", "last header", "one of three", "cut header", "cut file", "no end", "cut end"],
)  # fmt: skip
def test_a_damaged_tar_is_refused(data: bytes, tmp_path: Path) -> None:
    place = tmp_path / "set"
    place.mkdir()
    (place / "a.tar").write_bytes(data)
    with pytest.raises(DataUnavailableError, match=r"a\.tar: is damaged \(.*fetch the file again"):
        list(read_files(place, lambda _: True))
    with pytest.raises(DataUnavailableError, match=r"a\.tar: is damaged \(.*delete it, then fetch it again"):
        unpack(place / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", [BLOCK, 2 * BLOCK, len(WHOLE) - 3 * EACH, 100 * BLOCK])
def test_an_end_of_one_block_or_more_is_an_end(end: int, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(WHOLE[: 3 * EACH] + bytes(end))
    assert [file.name for file in read_files(tmp_path, lambda _: True)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("suffix", "pack", "at"),
    [
        (".tar.gz", lambda data: gzip.compress(data, 0), BLOCK + 200),
        (".tar.gz", gzip.compress, -6),
        (".tar.xz", lzma.compress, -20),
    ],
)
def test_the_checksum_of_a_packed_tar_is_compared(
    suffix: str, pack: Callable[[bytes], bytes], at: int, tmp_path: Path
) -> None:
    """It follows the end of the archive, up to which tarfile reads."""
    packed = pack(WHOLE)
    (tmp_path / f"a{suffix}").write_bytes(change(packed, at % len(packed)))
    with pytest.raises(DataUnavailableError, match=rf"a{suffix}: is damaged"):
        list(read_files(tmp_path, lambda _: True))
