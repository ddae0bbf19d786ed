"""Versions of Mosquitto, and which of them can reload their files."""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, ...]

VERSION_TOPIC: Final = "$SYS/broker/version"
"""Topic on which Mosquitto retains its name and version."""
RELOADS_SINCE: Final[Version] = (2, 1)
_VERSION: Final = re.compile(r"mosquitto version ([0-9]+(?:\.[0-9]+)+)")


def parse_version(text: str) -> Version | None:
    """Return the version in what ``mosquitto -h`` prints or ``VERSION_TOPIC`` holds; None without one."""
    found = _VERSION.search(text)
    return tuple(int(number) for number in found[1].split(".")) if found else None


def can_reload(version: Version | None) -> bool:
    """Return whether Mosquitto may get SIGHUP with our configuration; False if the version is unknown.

    With ``use_identity_as_username``, SIGHUP disconnects offline sessions a second time
    (``mosquitto_security_apply_default`` in src/security_default.c). Before 2.1.0, ``session_expiry__add`` in
    src/session_expiry.c then lists such a session twice. The second entry outlives the session and points to freed
    memory, which later disconnections read and write. Mosquitto's pull request 3341 (August 2025) added the missing
    check; 2.1.0 is the first release with it, and 2.0.22 is older. valgrind finds the errors in 2.0.11 and 2.0.21,
    and none in 2.1.2 (docs/adr/0034-restart-instead-of-reload.md).
    """
    return version is not None and version >= RELOADS_SINCE


def name_version(version: Version | None) -> str:
    """Return a text such as ``Mosquitto 2.0.11``."""
    return f"Mosquitto {'.'.join(map(str, version))}" if version else "a broker of unknown version"
