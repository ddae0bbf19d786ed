"""What the broker of a federation reads: configuration and ACL, from the templates in ``broker/``."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.errors import FederationError
from fedquilt_common.wire.topics import ROOT
from fedquilt_server.provisioning.record import Record

INSTALLED: Final = "/etc/mosquitto/fedquilt"
CONFIG: Final = "mosquitto.conf"
RELOAD_SECONDS: Final = 600.0
_FILES: Final = ("cafile", "certfile", "keyfile", "crlfile", "acl_file")


def acl(federation: str, revoked: Iterable[str]) -> str:
    """The template's rules for this federation alone, and none for boards that have been revoked: what is denied to a
    user comes before what is granted to all, also for a connection that is already there."""
    template = _template("acl")
    own = template.replace(f"{ROOT}/+/", f"{ROOT}/{federation}/").replace(f"{ROOT}/#", f"{ROOT}/{federation}/#")
    denied = "".join(f"\nuser {board}\ntopic deny {ROOT}/#\n" for board in sorted(revoked))
    return own + ("\n# Revoked:\n" + denied.lstrip("\n") if denied else "")


def installed_config(port: int) -> str:
    """For a Mosquitto that the system runs, with its files in ``INSTALLED``."""
    return _template("mosquitto-tls.conf").replace("listener 8883", f"listener {port}")


def own_config(folder: Path, port: int) -> str:
    """For ``fedquilt federation broker``: everything in ``folder``."""
    more = [
        "",
        "# `fedquilt federation broker` runs it from here.",
        "persistence true",
        f"persistence_location {folder}/",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_timestamp_format %Y-%m-%d %H:%M:%S",
        "# Started by root, it would become another user, who cannot read the keys.",
        f"user {getpass.getuser()}",
    ]
    return _settled(installed_config(port), folder) + "\n".join(more) + "\n"


def broker_files(folder: Path) -> list[Path]:
    """What the configuration in ``folder`` names, and Mosquitto does not start without."""
    words = [line.split(maxsplit=1) for line in (folder / CONFIG).read_text(encoding="utf-8").splitlines()]
    return [Path(word[1]) for word in words if len(word) == 2 and word[0] in _FILES]


def _settled(config: str, folder: Path) -> str:
    """With other places for its files; comments stay as they are."""
    lines = [line if line.startswith("#") else line.replace(INSTALLED, str(folder)) for line in config.splitlines()]
    return "\n".join([*lines, ""])


def reload_broker(folder: Path, record: Record) -> str:
    """Make the broker read ACL and revocations again; says what was done.

    Raises FederationError where the record's command fails.
    """
    if record.reload:
        return _run(record.reload)
    pid = running_broker(folder)
    if pid is not None:
        try:
            os.kill(pid, signal.SIGHUP)
        except PermissionError:
            words = f"the files are written, but the broker (process {pid}) is another user's: sudo kill -HUP {pid}"
            raise FederationError(words) from None
        return f"the broker (process {pid}) reads its files again"
    return (
        f"no broker runs from {folder}: copy acl and revoked.crl from there to where yours reads them, and make it "
        "read them again (sudo systemctl reload mosquitto)"
    )


def _run(command: str) -> str:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=RELOAD_SECONDS, check=False)  # noqa: S603 - the federation's owner wrote the command
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise FederationError(f"the files are written, but the broker was not reloaded: {error}") from None
    if done.returncode:
        raise FederationError(
            f"the files are written, but the broker was not reloaded: `{command}` ended with {done.returncode}: "
            f"{done.stderr.strip()[-500:]}"
        )
    return f"`{command}` is done"


def running_broker(folder: Path) -> int | None:
    """The process of a Mosquitto that runs with the configuration in ``folder``."""
    config = str(folder / CONFIG)
    for process in psutil.process_iter(["name", "cmdline"]):
        if "mosquitto" in (process.info["name"] or "") and config in (process.info["cmdline"] or []):
            return int(process.pid)
    return None


def _template(name: str) -> str:
    return resources.files("fedquilt_server.provisioning").joinpath(name).read_text(encoding="utf-8")
