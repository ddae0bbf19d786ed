"""The Mosquitto broker that ``fedquilt demo`` and ``fedquilt simulate`` start as a child process.

This module finds the program, writes its configuration and chooses a free port. ``supervisor`` starts and stops it
like every other child process.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedquilt_common.errors import BrokerMissingError, BrokerUnreachableError

MOSQUITTO_VARIABLE: Final = "FEDQUILT_MOSQUITTO"

# Debian and Homebrew install the program in folders that are often missing from a user's PATH.
SBIN_FOLDERS = (Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/opt/homebrew/sbin"))

# Enough for three rounds of the largest supported fleet. It is not 0, which means "no limit": Mosquitto 2.0.16 then
# delivers nothing, and versions up to 2.0.21 sometimes queue nothing.
MAX_QUEUED = 100_000

_CONNECTION_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT: Final = 20_000
"""Browsers refuse some ports below, which a page could get."""
_ENOUGH_PORTS: Final = 1000
_TRIES: Final = 20


def find_mosquitto() -> Path:
    """Find the broker program: ``FEDQUILT_MOSQUITTO``, else that of this virtual environment, else the machine's.

    Raises:
        BrokerMissingError: there is none, or ``FEDQUILT_MOSQUITTO`` is not a program.
    """
    if setting := os.environ.get(MOSQUITTO_VARIABLE):
        return _resolve_setting(setting)
    # Do not resolve the link: in a virtual environment, the interpreter is a link to a file outside of it.
    environment = Path(sys.executable).parent
    path = os.pathsep.join([str(environment), os.environ.get("PATH", os.defpath), *map(str, SBIN_FOLDERS)])
    if program := shutil.which("mosquitto", path=path):
        return Path(program)
    raise BrokerMissingError(
        "There is no mosquitto program on this machine. Run `make setup`, or install it with "
        "`sudo apt-get install mosquitto` (Debian, Ubuntu, Pi OS) or `brew install mosquitto` (macOS). "
        "If it is installed elsewhere, set FEDQUILT_MOSQUITTO=/path/to/mosquitto."
    )


def _resolve_setting(name: str) -> Path:
    if program := shutil.which(name):
        return Path(program)
    raise BrokerMissingError(
        f"{MOSQUITTO_VARIABLE} is {name}, which is not an executable program. "
        "Correct it, or unset it to use the mosquitto that `make setup` provides."
    )


def _loopback(port: int) -> list[str]:
    return [
        f"listener {port} 127.0.0.1",
        "# Anonymous is safe here: only this machine can connect, and the broker ends with the run.",
        "allow_anonymous true",
    ]


def broker_config(port: int, listener: Sequence[str] = ()) -> str:
    """Return the child's configuration, valid for Mosquitto 2.0 and 2.1: nothing on disk.

    Args:
        port: of a listener on loopback.
        listener: the lines of another listener, instead of that one.
    """
    lines = [
        "# Written by fedquilt for one run; changes are lost.",
        *(listener or _loopback(port)),
        "# Crashes: the run's journal is on disk, and the coordinator publishes everything again after a restart.",
        "persistence false",
        f"max_queued_messages {MAX_QUEUED}",
        "# Receipts are small; waiting to fill a packet would cost 40 ms for each of them.",
        "set_tcp_nodelay true",
        "sys_interval 10",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "# max_packet_size is not set, so that a run that works here also works with a broker's defaults.",
        "# This matters only if root starts the broker: after a change of user, the kernel would not stop this child",
        "# when its parent dies, and a killed run would leave its broker behind.",
        "user root",
    ]
    return "\n".join(lines) + "\n"


def broker_command(folder: Path, port: int, listener: Sequence[str] = ()) -> list[str]:
    """Write ``folder/mosquitto.conf`` and return the command that runs the broker in the foreground."""
    program = find_mosquitto()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(broker_config(port, listener), encoding="utf-8")
    return [str(program), "-c", str(config)]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of an address of this machine on which nothing listens at this moment.

    On Linux it is, if possible, one that the system gives to no connection, so nothing else takes it while its server
    is started, or started again.
    """
    for port in _quiet_ports():
        with contextlib.suppress(OSError):
            return _try_port(host, port)
    return _try_port(host, 0)


def _quiet_ports() -> list[int]:
    """Return some ports, in random order, below those that the system gives to connections; none if there are few."""
    try:
        end = int(_CONNECTION_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not on Linux
        return []
    ports = range(_FIRST_PORT, end)
    return random.SystemRandom().sample(ports, _TRIES) if len(ports) >= _ENOUGH_PORTS else []


def _try_port(host: str, port: int) -> int:
    """Return the port if it is free; for 0, one that the system chooses.

    Raises:
        OSError: the port is in use.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, port))
        chosen: int = probe.getsockname()[1]
    return chosen


def wait_listening(host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> None:
    """Wait until something accepts connections at ``host`` and ``port``.

    Args:
        tls: how to speak TLS with it: a broker with TLS logs an error for a connection without.

    Raises:
        BrokerUnreachableError: nothing accepts connections within ``timeout`` seconds.
    """
    end = time.monotonic() + timeout
    while not _accepts(host, port, tls):
        if time.monotonic() > end:
            raise BrokerUnreachableError(
                f"no MQTT broker answers at {host}:{port} after {timeout:g} seconds. "
                "Check that the broker is running, and check its address, its port and the firewall"
            )
        time.sleep(0.05)


def _accepts(host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            if tls is not None:
                _greet(tls, connection, host)
            return True
    except OSError:
        return False


def _greet(tls: ssl.SSLContext, connection: socket.socket, host: str) -> None:
    """Begin and end a TLS connection; a certificate that cannot be trusted is a matter of the next connection."""
    with contextlib.suppress(OSError), tls.wrap_socket(connection, server_hostname=host) as secure:
        secure.unwrap()
