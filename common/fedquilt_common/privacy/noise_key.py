"""The key of a board's secret noise; it never leaves the board."""

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


def open_key(folder: Path) -> str:
    """Return the board's key in hex; draw and store it the first time.

    Args:
        folder: the board's ledgers.

    Raises:
        RunFolderError: the stored key, or the one in FEDQUILT_NOISE_KEY, is damaged.
        OSError: the file cannot be read or written.
    """
    path = folder / _KEY
    given = os.environ.get(KEY_VARIABLE)
    if given is None and not path.exists():
        _draw_key(path)
    key = path.read_text() if given is None else given
    if not _PATTERN.fullmatch(key):
        where = path if given is None else KEY_VARIABLE
        raise RunFolderError(f"{where}: must be 64 hex digits; restore the file from a backup")
    return key


def _draw_key(path: Path) -> None:
    """Write a new key, unless another process has done so meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = create_private(path.with_name(f".{_KEY}.{os.getpid()}"))
    draft.write_text(secrets.token_hex(32))
    sync(draft)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    sync(path.parent)
