"""Which samples a ledger belongs to: training on a sample spends its privacy, whatever shard it is in.

Beside each ledger, ``<digest>.samples`` holds a short digest of each of its samples. A client whose samples are in
several ledgers has spent what all of them say: another partition, seed or a grown file starts no new account.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.privacy.ledger import SUFFIX
from fedquilt_common.types import Examples

_SAMPLES: Final = ".samples"
_ID_BYTES: Final = 8
_ID: Final = np.dtype("<u8")


def identify_samples(data: Examples) -> NDArray[np.uint64]:
    """Return the sorted, distinct digests of samples, uint64 of shape (n or fewer,).

    Args:
        data: ``x`` of shape (n, *input_shape); the labels do not matter, because noise may change them.
    """
    wide = (np.asarray(x, dtype=np.float64).tobytes() for x in data.x)  # so that another dtype makes no other sample
    found = (hashlib.blake2b(content, digest_size=_ID_BYTES).digest() for content in wide)
    return np.unique(np.frombuffer(b"".join(found), dtype=_ID))


def digest_samples(ids: NDArray[np.uint64]) -> str:
    """Return the SHA-256, in hex, of samples by their digests, uint64 of shape (n,)."""
    return hashlib.sha256(ids.tobytes()).hexdigest()


def keep_samples(folder: Path, ids: NDArray[np.uint64]) -> str:
    """Store which samples a ledger belongs to, durably; returns its digest.

    Args:
        folder: the board's ledgers.
        ids: what ``identify_samples`` returned, of shape (n,).

    Raises:
        OSError: the file cannot be written.
    """
    digest = digest_samples(ids)
    path = folder / f"{digest}{_SAMPLES}"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")  # another process may store the same samples now
        try:
            draft.write_bytes(ids.tobytes())
            replace_durably(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return digest


def find_related(folder: Path, ids: NDArray[np.uint64]) -> list[str]:
    """Return the digests of all sets of samples that have one in common with ``ids``, of shape (n,), and its own.

    Samples that are in use and have no ledger yet count, too.

    Raises:
        RunFolderError: the list of a ledger's samples is damaged or missing.
        OSError: a file cannot be read; it may be intact.
    """
    own = digest_samples(ids)
    others = (digest for digest in _list_digests(folder) if digest != own)
    return [own, *(digest for digest in others if np.isin(_read_samples(folder, digest), ids).any())]


def relate_ledgers(folder: Path) -> dict[str, list[str]]:
    """Return for each set of samples, by its digest, the other sets that have a sample in common with it.

    Raises:
        RunFolderError: the list of a ledger's samples is damaged or missing.
        OSError: a file cannot be read; it may be intact.
    """
    samples = {digest: _read_samples(folder, digest) for digest in _list_digests(folder)}
    return {
        one: [other for other in samples if other != one and np.isin(samples[other], samples[one]).any()]
        for one in samples
    }


def _list_digests(folder: Path) -> list[str]:
    """Return the digests of all sets of samples that were trained on, or are in use, in a fixed order."""
    return sorted({path.name.partition(".")[0] for end in (SUFFIX, _SAMPLES) for path in folder.glob(f"*{end}")})


def _read_samples(folder: Path, digest: str) -> NDArray[np.uint64]:
    path = folder / f"{digest}{_SAMPLES}"
    content = path.read_bytes() if path.exists() else b""
    ids = np.frombuffer(content[: len(content) // _ID_BYTES * _ID_BYTES], dtype=_ID)
    if digest_samples(ids) != digest or len(content) % _ID_BYTES:
        raise RunFolderError(
            f"{path}: is missing or damaged, so the board cannot know which samples were trained on: it trains no "
            "client with differential privacy. Restore the file from a backup"
        )
    return ids
