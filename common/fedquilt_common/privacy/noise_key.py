"""The key of the secret noise of a board, or of a coordinator; it never leaves the machine."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import create_private, sync

KEY_VARIABLE: Final = "FEDQUILT_NOISE_KEY"
"""The key of an agent that `simulate` starts, in hex: simulated boards have no secrets, but repeat to the same bits."""
_KEY: Final = "key"
_PATTERN: Final = re.compile(r"[0-9a-f]{64}")


def board_key(folder: Path) -> str:
    """Return the board's key in hex: the one in FEDQUILT_NOISE_KEY, or as ``open_key``."""
    given = os.environ.get(KEY_VARIABLE)
    return open_key(folder) if given is None else _check_key(given, KEY_VARIABLE)


def open_key(folder: Path) -> str:
    """Return the key in hex; draw and store it the first time.

    Args:
        folder: the board's ledgers, or the key folder of a run.

    Raises:
        RunFolderError: the stored key is damaged.
        OSError: the file cannot be read or written.
    """
    if not (folder / _KEY).exists():
        store_key(folder, secrets.token_hex(32))
    return read_key(folder)


def read_key(folder: Path) -> str:
    """Return the key, in hex, that a folder has.

    Raises:
        RunFolderError: it is damaged or missing.
        OSError: the file cannot be read.
    """
    path = folder / _KEY
    if not path.exists():
        raise RunFolderError(f"{path}: the key of the secret noise is missing; restore the file from a backup")
    return _check_key(path.read_text(), str(path))


def _check_key(key: str, where: str) -> str:
    if not _PATTERN.fullmatch(key):
        raise RunFolderError(f"{where}: must be 64 hex digits; restore the file from a backup")
    return key


def store_key(folder: Path, key: str) -> None:
    """Store a key, in hex, where ``open_key`` finds it; a key that is there stays.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / _KEY
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = create_private(path.with_name(f".{_KEY}.{os.getpid()}"))
    draft.write_text(key)
    sync(draft)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    sync(path.parent)
