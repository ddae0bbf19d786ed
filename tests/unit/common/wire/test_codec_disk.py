"""Arrays on a disk without room for them."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.wire.codec import write_arrays


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
