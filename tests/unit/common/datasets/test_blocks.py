"""Files of data sets are read in blocks: memory grows with what a file holds, not with the greatest size."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from fedquilt_common.datasets import blocks
from fedquilt_common.datasets.archives import list_files, read_files, read_listed
from fedquilt_common.datasets.blocks import read_to_end, read_up_to
from fedquilt_common.datasets.data_file import read_data_file
from fedquilt_common.datasets.files import open_packed, read_exactly, read_records
from fedquilt_common.datasets.tables import read_table
from fedquilt_common.errors import DataUnavailableError

TEXT = b"1 2\n3 4\n"
SMALL = 8 << 20
"""Bytes that reading a small file may take."""


def records(path: Path) -> object:
    with open_packed(path) as stream:
        return read_records(stream, 1, 1 << 30, path).tobytes()


def announced(path: Path) -> object:
    with open_packed(path) as stream, pytest.raises(DataUnavailableError, match="ends 1073741816 bytes too early"):
        read_exactly(stream, 1 << 30, path)
    return None


READERS: dict[str, Callable[[Path], object]] = {
    "table": lambda folder: read_table(folder / "a.txt", 2),
    "packed table": lambda folder: read_table(folder / "b.txt.gz", 2),
    "files": lambda folder: [file.data for file in read_files(folder, lambda name: name.endswith("txt"))],
    "listed": lambda folder: list(read_listed(list_files(folder, lambda name: name.endswith("txt")))),
    "records": lambda folder: records(folder / "a.txt"),
    "announced": lambda folder: announced(folder / "a.txt"),
    "data file": lambda folder: read_data_file("a.txt", None, "data.partition.file"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_a_small_file_takes_little_memory(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    (tmp_path / "a.txt").write_bytes(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("c.txt", TEXT)
    read(tmp_path)  # imports are not counted
    tracemalloc.start()
    try:
        read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


class Trickle(io.BytesIO):
    """Returns fewer bytes than it is asked for, as unpacking does."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 300_000))


@pytest.mark.parametrize("kind", [io.BytesIO, Trickle])
@pytest.mark.parametrize("most", [0, 1, 2_500_000, 3_000_000, 9_000_000])
def test_reading_up_to_a_limit(kind: Callable[[bytes], IO[bytes]], most: int) -> None:
    data = np.random.default_rng(1).bytes(3_000_000)
    assert read_up_to(kind(data), most) == data[:most]


def test_a_file_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MOST_BYTES", 7)
    assert read_to_end(io.BytesIO(b"1234567"), "a.txt") == b"1234567"
    with pytest.raises(DataUnavailableError, match=r"a\.txt: has more than 7 bytes"):
        read_to_end(io.BytesIO(b"12345678"), "a.txt")
