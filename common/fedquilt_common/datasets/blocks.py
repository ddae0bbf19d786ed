"""Read files in blocks, because ``read(most)`` allocates all of ``most`` bytes before it reads the first one.

Importing this module does not import numpy.
"""

from __future__ import annotations

import io
from typing import IO, Final

from fedquilt_common.errors import DataUnavailableError

MOST_BYTES: Final = 2 << 30
"""Greatest size of a file that is read as a whole, unpacked, so that a small archive cannot fill a board's memory."""
_BLOCK: Final = 1 << 20


def read_up_to(stream: IO[bytes], most: int) -> bytes:
    """Read until the end of the file, but at most ``most`` bytes; memory grows with what the file holds."""
    data = io.BytesIO()
    while block := stream.read(min(_BLOCK, most - data.tell())):
        data.write(block)
    return data.getvalue()


def read_to_end(stream: IO[bytes], where: str) -> bytes:
    """Read a file of a data set as a whole.

    Args:
        stream: of its unpacked bytes.
        where: its path, for errors.

    Raises:
        DataUnavailableError: it has more than ``MOST_BYTES``.
    """
    data = read_up_to(stream, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataUnavailableError(
            f"{where}: has more than {MOST_BYTES} bytes, so it is not this data set's file; fetch it again"
        )
    return data
