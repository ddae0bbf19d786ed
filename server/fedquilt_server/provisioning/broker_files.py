"""Write the configuration of a federation's broker, from a template, and reload the broker."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import subprocess
from importlib import resources
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.errors import FederationError
from fedquilt_server.provisioning.record import FederationRecord

SYSTEM_FOLDER: Final = "/etc/mosquitto/fedquilt"
CONFIG: Final = "mosquitto.conf"
RELOAD_SECONDS: Final = 600.0
_FILES: Final = ("cafile", "certfile", "keyfile", "crlfile", "acl_file")


def system_config(port: int) -> str:
    """Return the configuration of a Mosquitto that the system runs, with its files in ``SYSTEM_FOLDER``."""
    return _template("mosquitto-tls.conf").replace("listener 8883", f"listener {port}")


def local_config(folder: Path, port: int) -> str:
    """Return the configuration for ``fedquilt federation broker``, with all files in ``folder``."""
    additions = [
        "",
        "# `fedquilt federation broker` runs the broker with this file.",
        "persistence true",
        f"persistence_location {folder}/",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_timestamp_format %Y-%m-%d %H:%M:%S",
        "# Keep the user: if root starts Mosquitto, it would change to a user who cannot read the keys.",
        f"user {getpass.getuser()}",
    ]
    return _relocate(system_config(port), folder) + "\n".join(additions) + "\n"


def required_files(folder: Path) -> list[Path]:
    """List the files that the configuration in ``folder`` names and Mosquitto requires."""
    lines = [line.split(maxsplit=1) for line in (folder / CONFIG).read_text(encoding="utf-8").splitlines()]
    return [Path(words[1]) for words in lines if len(words) == 2 and words[0] in _FILES]


def _relocate(config: str, folder: Path) -> str:
    """Replace the folder of the files, but not in comments."""
    lines = [line if line.startswith("#") else line.replace(SYSTEM_FOLDER, str(folder)) for line in config.splitlines()]
    return "\n".join([*lines, ""])


def reload_broker(folder: Path, record: FederationRecord) -> str:
    """Make the broker reload its ACL and its revocation list.

    Args:
        folder: the broker's folder.
        record: the federation; its ``reload`` command is run if it has one.

    Returns:
        What was done, or what the user must do: a sentence without its full stop.

    Raises:
        FederationError: the command failed, or the broker belongs to another user.
    """
    if record.reload:
        return _run_reload_command(record.reload)
    pid = running_broker(folder)
    if pid is not None:
        try:
            os.kill(pid, signal.SIGHUP)
        except PermissionError:
            raise FederationError(
                f"the files are written, but the broker (process {pid}) belongs to another user; reload it: "
                f"sudo kill -HUP {pid}"
            ) from None
        return f"The broker (process {pid}) reloads its files"
    return (
        f"No broker runs from {folder}: copy acl and revoked.crl from there to your broker's folder, and reload it "
        "(sudo systemctl reload mosquitto)"
    )


def _run_reload_command(command: str) -> str:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=RELOAD_SECONDS, check=False)  # noqa: S603 - the federation's owner chose the command
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise FederationError(f"the files are written, but `{command}` did not reload the broker: {error}") from None
    if done.returncode:
        raise FederationError(
            f"the files are written, but `{command}` did not reload the broker. It ended with exit code "
            f"{done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return f"`{command}` succeeded"


def running_broker(folder: Path) -> int | None:
    """Return the process id of the Mosquitto that runs with the configuration in ``folder``; None without one."""
    config = str(folder / CONFIG)
    for process in psutil.process_iter(["name", "cmdline"]):
        if "mosquitto" in (process.info["name"] or "") and config in (process.info["cmdline"] or []):
            return int(process.pid)
    return None


def _template(name: str) -> str:
    return resources.files("fedquilt_server.provisioning").joinpath(name).read_text(encoding="utf-8")
