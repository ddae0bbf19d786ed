"""Targets: files that are read back, and replies from boards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt_client.records import COMMITTED, read_record, write_record
from fedquilt_common.errors import PayloadError, ProtocolError, RunFolderError
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.coordinator.expected_replies import ExpectedReply, check_reply

EXPECTED = ExpectedReply((1, 0), "0123456789abcdef", [{"w": ("F32", (2, 3)), "n": ("I64", ())}], {"loss": (0.0, 9.0)})


def read_arrays(data: bytes, folder: Path) -> None:
    """Read all arrays of a container."""
    arrays = _arrays(data, folder)
    for name in arrays:
        assert arrays[name].shape == arrays.shape(name)


def read_reply(data: bytes, folder: Path) -> None:
    """Check a reply as the coordinator does before it counts; its numbers are finite and have the shapes asked for."""
    arrays = _arrays(data, folder)
    header = check_reply("lab", 3, EXPECTED, arrays)
    assert header.client == 3
    assert arrays["w"].shape == (2, 3)
    assert np.isfinite(arrays["w"]).all()


def _arrays(data: bytes, folder: Path) -> FileArrays:
    (folder / "container").write_bytes(data)
    return FileArrays(folder / "container")


def read_client_record(data: bytes, folder: Path) -> None:
    """Read what an agent has committed for a client; what was read is written and read again."""
    (folder / COMMITTED).write_bytes(data)
    record = read_record(folder)
    write_record(folder, record)
    assert read_record(folder) == record


TARGETS = {
    "containers": (read_arrays, (PayloadError,), 4096),
    "replies": (read_reply, (ProtocolError,), 4096),
    "client-records": (read_client_record, (RunFolderError,), 4096),
}
