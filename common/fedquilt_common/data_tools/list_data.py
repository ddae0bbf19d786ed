"""Which data sets there are, and which of their files are on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedquilt_common.catalogue.entries import list_entries
from fedquilt_common.data_tools.published import PUBLISHED, find_folder
from fedquilt_common.data_tools.sources import SOURCES, STEPS
from fedquilt_common.datasets import UNPREPARED
from fedquilt_common.datasets.cache import cache_folder
from fedquilt_common.datasets.prepared_files import MANIFEST


@dataclass(frozen=True)
class ListedSet:
    """A data set and its state on this machine.

    Attributes:
        name: its key.
        summary: one sentence.
        task: what is learned.
        licence: what the publisher states.
        megabytes: approximate size of the published files.
        folder: where its files belong; "" if a package holds them, or FEDQUILT_DATA is not set.
        state: ``there``, ``incomplete``, ``missing``, or ``unknown`` without a folder of data sets.
        missing: the files that are not there.
        get: ``yes`` if ``fedquilt data get`` fetches all of it, ``partly``, ``no``, or ``not needed``.
        prepared: whether the cache has it, perhaps of other files or of another version.
    """

    name: str
    summary: str
    task: str
    licence: str
    megabytes: int
    folder: str
    state: str
    missing: tuple[str, ...]
    get: str
    prepared: bool


def list_sets(root: Path | None) -> list[ListedSet]:
    """List all data sets.

    Args:
        root: the folder of data sets; None: unknown.
    """
    return [_list_set(entry.name, entry.summary, root) for entry in list_entries("data set")]


def _list_set(name: str, summary: str, root: Path | None) -> ListedSet:
    published, folder = PUBLISHED[name], None if root is None or name in UNPREPARED else root / find_folder(name)
    missing = () if folder is None else tuple(published.find_missing(folder))
    return ListedSet(
        name, summary, published.task, published.licence, published.megabytes, "" if folder is None else str(folder),
        _name_state(name, folder, missing), missing, _describe_get(name),
        any((entry / MANIFEST).is_file() for entry in cache_folder().glob(f"{name}-{'[0-9a-f]' * 16}")),
    )  # fmt: skip


def _name_state(name: str, folder: Path | None, missing: tuple[str, ...]) -> str:
    if name in UNPREPARED or (folder is not None and not missing):
        return "there"
    if folder is None:
        return "unknown"
    return "missing" if len(missing) == len(PUBLISHED[name].files) else "incomplete"


def _describe_get(name: str) -> str:
    if name in UNPREPARED:
        return "not needed"
    if name in STEPS:
        return "partly" if name in SOURCES else "no"
    return "yes"
