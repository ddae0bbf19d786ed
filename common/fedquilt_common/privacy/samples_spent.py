"""Which samples a ledger belongs to: training on a sample spends its privacy, whatever shard it is in.

Beside each ledger, ``<name>.samples`` holds a short digest of each of its samples. A client whose samples are in
several ledgers has spent the entries of all of them together: another partition or seed, or a file that has grown, does
not start a new account.

The board's own samples (``data.delivery: own``) have their ledgers in the folder ``own``. They count the ledgers of all
samples that the board received, and these count all own ones, whether they have a sample in common or not. Otherwise a
coordinator could send a sample, and learn from the epsilon that is spent whether it is among the board's own.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import replace_durably, sync
from fedquilt_common.privacy.ledger import SUFFIX
from fedquilt_common.types import Examples

_SAMPLES: Final = ".samples"
_ID_BYTES: Final = 8
_ID: Final = np.dtype("<u8")
_OWN: Final = "own/"


def identify_samples(data: Examples) -> NDArray[np.uint64]:
    """Return the sorted, distinct digests of samples, uint64 of shape (n or fewer,).

    Args:
        data: ``x`` of shape (n, *input_shape); the labels do not matter, because noise may change them.
    """
    wide = (np.asarray(x, dtype=np.float64).tobytes() for x in data.x)  # so that another dtype makes no other sample
    found = (hashlib.blake2b(content, digest_size=_ID_BYTES).digest() for content in wide)
    return np.unique(np.frombuffer(b"".join(found), dtype=_ID))


def digest_sample_ids(ids: NDArray[np.uint64]) -> str:
    """Return the SHA-256, in hex, of samples by their digests, uint64 of shape (n,)."""
    return hashlib.sha256(ids.tobytes()).hexdigest()


def name_ledger(ids: NDArray[np.uint64], *, own: bool) -> str:
    """Return the name of the ledger of samples, by their digests, uint64 of shape (n,).

    Args:
        ids: what ``identify_samples`` returned, of shape (n,).
        own: whether the samples are the board's own; otherwise it received them, or has them from a public data set.
    """
    return f"{_OWN if own else ''}{digest_sample_ids(ids)}"


def keep_samples(folder: Path, ids: NDArray[np.uint64], *, own: bool) -> str:
    """Store which samples a ledger belongs to, durably; returns its name.

    Args:
        folder: the board's ledgers.
        ids: what ``identify_samples`` returned, of shape (n,).
        own: whether they are the board's own.

    Raises:
        OSError: the file cannot be written.
    """
    name = name_ledger(ids, own=own)
    path = folder / f"{name}{_SAMPLES}"
    if not path.exists():
        for place in (folder, path.parent):  # each is for its owner only
            _make_folder(place)
        draft = path.with_suffix(f".{os.getpid()}")  # another process may store the same samples now
        try:
            draft.write_bytes(ids.tobytes())
            replace_durably(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return name


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def find_related(folder: Path, ids: NDArray[np.uint64], *, own: bool) -> list[str]:
    """Return the names of the ledgers that samples count: their own, and those that the module's text names.

    Samples that are in use and have no ledger yet count, too.

    Args:
        folder: the board's ledgers.
        ids: what ``identify_samples`` returned, of shape (n,).
        own: whether they are the board's own.

    Raises:
        RunFolderError: the list of a ledger's samples is damaged or missing.
        OSError: a file cannot be read; it may be intact.
    """
    mine = name_ledger(ids, own=own)
    others = (name for name in _list_names(folder, SUFFIX, _SAMPLES) if name != mine)
    return [mine, *(name for name in others if _are_related(mine, ids, name, _read_samples(folder, name)))]


def relate_ledgers(folder: Path) -> dict[str, list[str]]:
    """Return for each ledger, by its name, the others that it counts.

    Raises:
        RunFolderError: the list of a ledger's samples is damaged or missing.
        OSError: a file cannot be read; it may be intact.
    """
    samples = {name: _read_samples(folder, name) for name in _list_names(folder, SUFFIX, _SAMPLES)}
    return {
        one: [other for other in samples if other != one and _are_related(one, samples[one], other, samples[other])]
        for one in samples
    }


def _are_related(one: str, of_one: NDArray[np.uint64], other: str, of_other: NDArray[np.uint64]) -> bool:
    differ = one.startswith(_OWN) != other.startswith(_OWN)
    return differ or bool(np.isin(of_other, of_one).any())


def list_ledgers(folder: Path) -> list[str]:
    """Return the names of all ledgers that have a file, in a fixed order."""
    return _list_names(folder, SUFFIX)


def _list_names(folder: Path, *ends: str) -> list[str]:
    paths = (path for place in ("", _OWN) for end in ends for path in folder.glob(f"{place}*{end}"))
    return sorted({path.relative_to(folder).as_posix().partition(".")[0] for path in paths})


def _read_samples(folder: Path, name: str) -> NDArray[np.uint64]:
    path = folder / f"{name}{_SAMPLES}"
    content = path.read_bytes() if path.exists() else b""
    ids = np.frombuffer(content[: len(content) // _ID_BYTES * _ID_BYTES], dtype=_ID)
    if digest_sample_ids(ids) != name.removeprefix(_OWN) or len(content) % _ID_BYTES:
        raise RunFolderError(
            f"{path}: is missing or damaged, so the board cannot know which samples were trained on: it trains no "
            "client with differential privacy. Restore the file from a backup"
        )
    return ids
