"""The socket on which a status page listens, and the errors of its address."""

from __future__ import annotations

import errno
import socket
import time

from fedquilt_common.errors import FedquiltError


class PortInUseError(FedquiltError):
    """Another program uses the status page's port."""


class PageAddressError(FedquiltError):
    """The status page cannot listen on the given address."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        PortInUseError: another program uses the port.
        PageAddressError: this machine cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise _address_error(error, host, port) from error


def _address_error(error: OSError, host: str, port: int) -> FedquiltError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"The status page cannot use port {port} on {host}: another program uses it. "
            "Choose another port, or 0 for any free port. The other program may be a coordinator that is still running."
        )
    return PageAddressError(
        f"The status page cannot listen on {host} port {port}: {error.strerror or error}. "
        "Use an address of this machine (127.0.0.1, or 0.0.0.0 for all its addresses) and a port of 1024 or above."
    )


def await_port(host: str, port: int, seconds: float) -> None:
    """Wait until this machine can listen on a port, which a process that is ending may still use.

    Args:
        seconds: how long to wait at most.

    Raises:
        PortInUseError: another program uses the port all the time.
        PageAddressError: this machine cannot listen on the address.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            open_listener(host, port).close()
            return
        except PortInUseError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)
