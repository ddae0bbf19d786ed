"""Check the address of a Ray cluster first: Ray itself needs two minutes to find out that no cluster is there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Final

from fedquilt_common.errors import ExperimentError, RayClusterError

AUTO: Final = "auto"
_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")
_SECONDS: Final = 5.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2, which Ray's head speaks, sends first: the preface and an empty frame of settings."""
_FRAME_HEAD: Final = 9
_SETTINGS: Final = 4


def resolve_address(given: str) -> str:
    """Return the address of ``--ray``; for ``auto`` that of the variable RAY_ADDRESS, if it is set.

    Raises:
        ExperimentError: it is not ``auto`` or ``host:port``.
    """
    address = (os.environ.get("RAY_ADDRESS") or AUTO) if given == AUTO else given
    if address.startswith("ray://"):
        raise ExperimentError(
            f"--ray {address}: agents connect to this machine, so it must be a node of the cluster. Run `ray start "
            "--address=HOST:6379 --num-cpus=0` here, then give --ray HOST:6379"
        )
    found = _ADDRESS.fullmatch(address)
    if address != AUTO and (found is None or not 0 < int(found["port"]) < 1 << 16):
        raise ExperimentError(f"--ray {address}: write `auto` or the address of the cluster's head, HOST:6379")
    return address


def check_answers(address: str) -> None:
    """Check that something at the address speaks the protocol of Ray's head.

    Raises:
        RayClusterError: nothing listens there, or something else does.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:  # it is auto: Ray itself finds the cluster of this machine
        return
    where = found["host"].strip("[]"), int(found["port"])
    advice = "`ray status` on the head prints the cluster's address"
    try:
        with socket.create_connection(where, timeout=_SECONDS) as connection:
            connection.settimeout(_SECONDS)
            if os.environ.get("RAY_USE_TLS") != "1" and not _speaks_http2(connection):
                raise RayClusterError(f"--ray {address}: something else than a Ray cluster listens there. {advice}")
    except OSError as error:
        raise RayClusterError(f"--ray {address}: no Ray cluster answers there ({error}). {advice}") from None


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side answers with a frame of settings."""
    answer = b""
    with contextlib.suppress(OSError):
        connection.sendall(_PREFACE)
        while len(answer) < _FRAME_HEAD and (part := connection.recv(_FRAME_HEAD - len(answer))):
            answer += part
    return len(answer) == _FRAME_HEAD and answer[3] == _SETTINGS
