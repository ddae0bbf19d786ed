"""Write the configuration of a federation's broker from a template."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

from fedquilt_server.provisioning.packaged_files import read_packaged

SYSTEM_FOLDER: Final = "/etc/mosquitto/fedquilt"
CONFIG: Final = "mosquitto.conf"
_FILES: Final = (
    "cafile", "certfile", "keyfile", "crlfile", "acl_file", "bridge_cafile", "bridge_certfile", "bridge_keyfile",
)  # fmt: skip


def system_config(port: int, bridge: str = "") -> str:
    """Return the configuration of a Mosquitto that the system runs, with its files in ``SYSTEM_FOLDER``.

    Args:
        port: where it listens.
        bridge: the section of a site's bridge; empty for the central broker.
    """
    return read_packaged("mosquitto-tls.conf").replace("listener 8883", f"listener {port}") + bridge


def local_config(folder: Path, port: int, bridge: str = "") -> str:
    """Return the configuration of a Mosquitto that a user runs, with all files in ``folder``.

    Args:
        folder: the folder of the broker's files.
        port: where it listens.
        bridge: the section of a site's bridge; empty for the central broker.
    """
    additions = [
        "",
        "# Run the broker with this file on this machine: `fedquilt federation broker` does, or mosquitto -c.",
        "persistence true",
        f"persistence_location {folder}/",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_timestamp_format %Y-%m-%d %H:%M:%S",
        *_user_lines(),
    ]
    config = _relocate(system_config(port), folder) + "\n".join(additions) + "\n"
    return config + _relocate(bridge, folder)


def required_files(folder: Path) -> list[Path]:
    """List the files that the configuration in ``folder`` names and Mosquitto requires."""
    lines = [line.split(maxsplit=1) for line in (folder / CONFIG).read_text(encoding="utf-8").splitlines()]
    return [Path(words[1]) for words in lines if len(words) == 2 and words[0] in _FILES]


def _relocate(config: str, folder: Path) -> str:
    """Replace the folder of the files, but not in comments."""
    lines = [line if line.startswith("#") else line.replace(SYSTEM_FOLDER, str(folder)) for line in config.splitlines()]
    return "\n".join([*lines, ""])


def _user_lines() -> list[str]:
    """Return the lines that keep the user of this process; none for a user without a name, who is not root."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return []
    return [
        "# Keep the user: if root starts Mosquitto, it would change to a user who cannot read the keys.",
        f"user {name}",
    ]
