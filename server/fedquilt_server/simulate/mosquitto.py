"""The Mosquitto of one's own that ``fedquilt demo`` and ``fedquilt simulate`` start as a child process.

Here is only what that child needs: the program, its configuration, a free port. Who starts and stops it
supervises all children alike and knows nothing of MQTT.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from pathlib import Path

from fedquilt_common.errors import BrokerMissingError, BrokerUnreachableError

# Debian and Homebrew put the program where a user's PATH often does not look.
SBIN_PLACES = (Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/opt/homebrew/sbin"))

# Three rounds of the largest supported fleet. Not 0: that means "no limit", except in Mosquitto 2.0.16
# (nothing is delivered) and up to 2.0.21 (sometimes nothing is queued).
MAX_QUEUED = 100_000


def find_mosquitto() -> Path:
    """The broker program: ``FEDQUILT_MOSQUITTO``, else this environment's own, else the machine's."""
    if chosen := os.environ.get("FEDQUILT_MOSQUITTO"):
        return _chosen(chosen)
    # Not resolved: in a virtual environment the interpreter is a link out of it.
    own = Path(sys.executable).parent
    path = os.pathsep.join([str(own), os.environ.get("PATH", os.defpath), *map(str, SBIN_PLACES)])
    if found := shutil.which("mosquitto", path=path):
        return Path(found)
    raise BrokerMissingError(
        "There is no mosquitto program on this machine. Run `make setup`, or install it with "
        "`sudo apt-get install mosquitto` (Debian, Ubuntu, Pi OS) or `brew install mosquitto` (macOS). "
        "One that is elsewhere is named with FEDQUILT_MOSQUITTO=/path/to/mosquitto."
    )


def _chosen(name: str) -> Path:
    if found := shutil.which(name):
        return Path(found)
    raise BrokerMissingError(
        f"FEDQUILT_MOSQUITTO names {name}, which is no program that can be run. "
        "Correct it, or unset it to use the mosquitto that `make setup` provides."
    )


def broker_config(port: int) -> str:
    """The child's configuration: loopback only, nothing on disk; all of it known to Mosquitto 2.0 and 2.1."""
    lines = [
        "# Written by fedquilt for the length of one run; changes are lost.",
        f"listener {port} 127.0.0.1",
        "# Anonymous is safe here: only this machine can connect, and the broker ends with the run.",
        "allow_anonymous true",
        "# The run's own journal is what survives a crash; a broker that restarts is filled again from it.",
        "persistence false",
        f"max_queued_messages {MAX_QUEUED}",
        "# Receipts are small; waiting to fill a packet would cost 40 ms each.",
        "set_tcp_nodelay true",
        "sys_interval 10",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "# max_packet_size stays unset, so that what works here works with the broker's defaults elsewhere.",
        "# Matters only when started by root: after a change of user the kernel would no longer end this child",
        "# together with its parent, and a killed run would leave its broker behind.",
        "user root",
    ]
    return "\n".join(lines) + "\n"


def broker_command(folder: Path, port: int) -> list[str]:
    """Write ``folder/mosquitto.conf`` and return the command that runs the broker in the foreground."""
    program = find_mosquitto()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(broker_config(port), encoding="utf-8")
    return [str(program), "-c", str(config)]


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_listening(host: str, port: int, timeout: float) -> None:
    """Return once something accepts connections there; raise if nothing does within ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not _accepts(host, port):
        if time.monotonic() > end:
            raise BrokerUnreachableError(
                f"no MQTT broker answers at {host}:{port} after {timeout:g} seconds. "
                "Check that the broker runs, its address and port, and the firewall"
            )
        time.sleep(0.05)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
