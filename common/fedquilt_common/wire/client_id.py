"""MQTT client identifiers with a secret suffix.

A broker ends a connection when another client connects with the same identifier. Nobody who does not have the suffix
can take over a connection in this way.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import create_private, replace_durably
from fedquilt_common.wire.topics import COORDINATOR

SUFFIX_FILE: Final = "mqtt-client"
"""The file in a state folder or a run folder that keeps the suffix."""
_SUFFIX: Final = re.compile(rb"[0-9a-f]{32}")
_INSTANCE_DIGITS: Final = 16


def agent_client_id(federation: str, agent: str, suffix: str) -> str:
    """Return an agent's MQTT client identifier, at most 171 characters. It is a secret."""
    return f"fedquilt-{federation}-{agent}-{suffix}"


def coordinator_client_id(federation: str, suffix: str) -> str:
    """Return a coordinator's MQTT client identifier. It is a secret."""
    return agent_client_id(federation, COORDINATOR, suffix)


def keep_suffix(folder: Path) -> str:
    """Return the secret suffix that ``folder`` keeps, 32 hexadecimal digits.

    A missing, unreadable or damaged file is replaced by a new suffix. Only the session at the broker is lost then, and
    both sides build it again.

    Raises:
        RunFolderError: the file cannot be written.
    """
    path = folder / SUFFIX_FILE
    return _read_suffix(path) or _write_suffix(path, secrets.token_hex(16))


def instance_of(suffix: str) -> str:
    """Return the public name of a state folder, which does not reveal its suffix."""
    return hashlib.sha256(f"fedquilt instance {suffix}".encode()).hexdigest()[:_INSTANCE_DIGITS]


def _read_suffix(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        if path.is_file():
            path.chmod(0o600)  # a restored backup may have made it readable for others
            with path.open("rb") as file:
                kept = file.read(33)
            return kept.decode() if _SUFFIX.fullmatch(kept) else None
    return None


def _write_suffix(path: Path, suffix: str) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = create_private(path.with_name(f".{path.name}.new"))
        fresh.write_text(suffix, encoding="ascii")
        replace_durably(fresh, path)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror}. It keeps the identity at the broker; "
            "check the disk's free space and the folder's owner"
        ) from None
    return suffix
