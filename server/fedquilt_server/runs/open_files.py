"""Opens files of a run folder that a coordinator may replace meanwhile, such as the newest global model."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from fedquilt_common.errors import NoGlobalModelError, RunFolderError
from fedquilt_common.files.digests import digest_bytes, find_sha256, kind_of
from fedquilt_common.files.locking import hold
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import BytesArrays
from fedquilt_common.wire.message_base import DIGEST_PATTERN
from fedquilt_server.runs.blob_store import BLOBS
from fedquilt_server.runs.journal import peek_extra, peek_model
from fedquilt_server.status.run_file_names import JOURNAL, MODEL

_DIGEST: Final = re.compile(DIGEST_PATTERN)
_TRIES: Final = 5
"""A try fails only if a whole round finishes between reading the journal and opening the file that it names."""


@dataclass(frozen=True)
class NewestModel:
    """The global model after the last finished round.

    Attributes:
        sha256: digest of the content, in hex.
        file: safetensors with floats in fp32. It is open and held, so it stays whole while later rounds replace it.
    """

    round: int
    sha256: str
    file: BinaryIO


def open_model(folder: Path) -> NewestModel:
    """Open the global model of the newest checkpoint; the caller closes its file.

    Raises:
        RunFolderError: no round is finished; or the journal is damaged, or its model is missing.
        NoGlobalModelError: the algorithm has no model for all clients.
    """
    for _ in range(_TRIES):
        number, digest = _find_model(folder)
        for path in (folder / BLOBS / digest, folder / MODEL):  # the latter in a copy of a run without its blobs
            try:
                file = open_regular(path)
            except FileNotFoundError:
                continue
            if not hold(file, path):
                file.close()
                continue
            if _has_numbers(file):
                return NewestModel(number, find_sha256(file, digest), file)
            file.close()
            raise NoGlobalModelError(
                "The algorithm has no global model: each client keeps its own. "
                "`fedquilt memory export` on a board exports them"
            )
    raise RunFolderError(f"The model of round {number} is not in the run folder; try again after the next round")


def read_extra(folder: Path) -> Arrays:
    """Return what the algorithm keeps besides the model after the last finished round, in memory.

    A coordinator that works may write over the file of an earlier round, so the bytes that were read are verified.

    Raises:
        RunFolderError: the journal or the file is missing or damaged.
    """
    for _ in range(_TRIES):
        if not (digest := peek_extra(folder / JOURNAL)):
            return {}
        if not _DIGEST.fullmatch(digest):  # a damaged journal must not name a file outside of the folder
            raise RunFolderError(f"{folder / JOURNAL}: names no file for `State.extra`: it is damaged")
        with contextlib.suppress(FileNotFoundError), open_regular(folder / BLOBS / digest) as file:
            content = file.read()
            if digest_bytes(content, kind_of(digest)) == digest:
                return BytesArrays(content)
    raise RunFolderError(f"{folder / BLOBS / digest} is missing or damaged, so `State.extra` cannot be read")


def _find_model(folder: Path) -> tuple[int, str]:
    number, digest = peek_model(folder / JOURNAL) or (0, "")
    if number == 0:
        raise RunFolderError("No round is finished, so there is no model yet; try again after the first round")
    if not _DIGEST.fullmatch(digest):  # a damaged journal must not name a file outside of the folder
        raise RunFolderError("The journal names no model for its last round: it is damaged")
    return number, digest


def _has_numbers(file: BinaryIO) -> bool:
    """Return whether a safetensors file holds more than its header."""
    header = int.from_bytes(file.read(8), "little")
    file.seek(0)
    return os.fstat(file.fileno()).st_size > 8 + header


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. A link, which may lead out of the run folder, counts as missing.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise FileNotFoundError(path)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)
