"""The cache of prepared data sets: published files are decoded once, and all processes of the machine share the result.

An entry is a folder ``<data set>-<digest>`` in the folder that FEDQUILT_CACHE names. The digest covers the published
files and the loaders' code, so a changed file or another version of fedquilt makes a new entry. An entry gets its name
only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from fedquilt_common.datasets.parts import DatasetPart, PartedDataset
from fedquilt_common.datasets.prepared_files import MANIFEST, open_prepared, write_dataset, write_parts
from fedquilt_common.datasets.sources import digest_loaders, digest_sources
from fedquilt_common.errors import DataUnavailableError, FolderInUseError
from fedquilt_common.files.durable import sync
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.types import Dataset

log = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "FEDQUILT_CACHE"
_KEPT: Final = 2
"""Entries of a data set that stay: the one in use, and the one before it."""
_LOG_SECONDS: Final = 5.0
_WORKERS: Final = 4
Loaded = Dataset | PartedDataset


def cache_folder() -> Path:
    """Folder of the cache: FEDQUILT_CACHE, else the one that systemd gives the service, else ``~/.cache/fedquilt``."""
    named = os.environ.get(CACHE_VARIABLE) or os.environ.get("CACHE_DIRECTORY")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fedquilt"


def load_prepared(name: str, place: Path, load: Callable[[], Loaded]) -> Dataset:
    """Open the prepared data set, and prepare it first if the cache does not have it.

    If several processes ask for it, one prepares it and the others wait.

    Args:
        name: of the data set.
        place: the folder of its published files.
        load: reads them.

    Returns:
        The data set. Its samples stay in the cache's files until they are used.

    Raises:
        DataUnavailableError: a published file is missing or damaged; or the data set has parts and the cache cannot be
            written.
    """
    cache = cache_folder()
    try:
        entry = cache / f"{name}-{_digest(name, place, cache)}"
        return _open(entry) or _prepare(entry, load)
    except FolderInUseError as error:
        return _load_without(cache, error, load)
    except OSError as error:
        if error.filename is not None and Path(error.filename).is_relative_to(place):
            raise DataUnavailableError(f"{error.filename}: {error.strerror}; make the file readable") from error
        return _load_without(cache, error, load)


def _digest(name: str, place: Path, cache: Path) -> str:
    key = f"{name} {digest_sources(place, cache / 'sources')} {digest_loaders()}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _open(entry: Path) -> Dataset | None:
    if not (entry / MANIFEST).is_file():
        return None
    try:
        return open_prepared(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is damaged (%s); preparing the data set again", entry, error)
        return None


def _prepare(entry: Path, load: Callable[[], Loaded]) -> Dataset:
    name = entry.name.rpartition("-")[0]
    with _lock(entry.parent / "locks", name):
        found = _open(entry)  # another process may have prepared it meanwhile
        if found is not None:
            return found
        started = time.monotonic()
        draft = entry.with_name(f".{name}.new")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        draft.mkdir(parents=True)
        try:
            _write(draft, load())
            shutil.rmtree(entry, ignore_errors=True)
            draft.rename(entry)
            sync(entry.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        log.info("prepared the data set %s in %.1f s: %s", name, time.monotonic() - started, entry)
        _remove_old(entry, name)
        return open_prepared(entry)


def _lock(folder: Path, name: str) -> IO[str]:
    with contextlib.suppress(FolderInUseError):
        return lock_folder(folder, wait=0, name=name)
    log.info("another process prepares the data set %s; waiting for it", name)
    return lock_folder(folder, wait=float("inf"), name=name)


def _write(draft: Path, loaded: Loaded) -> None:
    if isinstance(loaded, Dataset):
        write_dataset(draft, loaded)
    else:
        write_parts(draft, loaded, _read_parts(loaded))


def _read_parts(parted: PartedDataset) -> Iterator[DatasetPart]:
    """Read the parts in order, in several threads; at most one part for each of them is in memory."""
    workers, total = min(_WORKERS, os.cpu_count() or 1, len(parted.readers)), len(parted.readers)
    waiting: deque[Future[DatasetPart]] = deque()
    logged, done = time.monotonic(), 0
    # Threads: unpacking and numpy run beside each other in them, and a new process would run a user's script again.
    with ThreadPoolExecutor(workers) as pool:
        for reader in [*parted.readers, *[None] * workers]:
            if reader is not None:
                waiting.append(pool.submit(reader))
            if waiting and (reader is None or len(waiting) >= workers):
                yield waiting.popleft().result()
                done += 1
                if time.monotonic() - logged > _LOG_SECONDS:
                    logged = time.monotonic()
                    log.info("preparing the data set %s: %d of %d files", parted.name, done, total)


def _remove_old(entry: Path, name: str) -> None:
    """Remove all but the newest entries of a data set. Processes that have one open keep reading it."""
    others = [path for path in entry.parent.glob(f"{name}-{'?' * 16}") if path != entry]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _load_without(cache: Path, error: Exception, load: Callable[[], Loaded]) -> Dataset:
    """Load into this process' memory, if that is how the loader reads anyway."""
    loaded = load()
    if isinstance(loaded, PartedDataset):
        raise DataUnavailableError(
            f"{cache}: the data set {loaded.name} cannot be prepared there: {error}; free disk "
            f"space, or set {CACHE_VARIABLE} to a folder with room for it"
        ) from error
    log.warning("%s cannot be used (%s): each process loads %s on its own", cache, error, loaded.name)
    return loaded
