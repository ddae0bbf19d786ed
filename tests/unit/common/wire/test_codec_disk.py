"""Arrays on a disk without room for them."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.files.digests import digest_file
from fedquilt_common.wire.codec import FileArrays, write_arrays


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the files of this process to ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with largest_file(1000), pytest.raises(OSError, match="File too large") as error:
        write_arrays(tmp_path / "x", {"x": np.zeros(1 << 16, np.float32)})
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(tmp_path / "x"))


@pytest.mark.parametrize("before", [0, 100, 3_000_000], ids=str)
@pytest.mark.parametrize("numbers", [10, 1 << 19], ids=str)
def test_a_file_is_written_over_where_it_lies(tmp_path: Path, before: int, numbers: int) -> None:
    """Ext4 writes a file to the disk at once that is renamed over another: on a board, its SD card."""
    path = tmp_path / "x"
    path.write_bytes(b"\xff" * before)
    number = path.stat().st_ino
    blob = write_arrays(path, {"x": np.zeros(numbers, np.float32)}, durable=True)
    assert path.stat().st_ino == number
    assert (blob.size, blob.digest) == (path.stat().st_size, digest_file(path, "xxh3"))
    assert not FileArrays(path)["x"].any()
