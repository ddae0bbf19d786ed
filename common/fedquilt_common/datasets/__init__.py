"""Data sets by name, one file each. Importing this package does not import numpy."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from pathlib import Path

from fedquilt_common.types import Dataset
from fedquilt_common.user_imports import resolve

DATASETS: dict[str, str] = {
    "aep": "fedquilt_common.datasets.aep:load",
    "casas": "fedquilt_common.datasets.casas:load",
    "cifar10": "fedquilt_common.datasets.cifar10:load",
    "cifar100": "fedquilt_common.datasets.cifar100:load",
    "clusterfl-imu": "fedquilt_common.datasets.clusterfl_imu:load",
    "depth": "fedquilt_common.datasets.depth:load",
    "digits": "fedquilt_common.datasets.digits:load",
    "epic-sounds": "fedquilt_common.datasets.epic_sounds:load",
    "fashion-mnist": "fedquilt_common.datasets.fashion_mnist:load",
    "femnist": "fedquilt_common.datasets.femnist:load",
    "harb": "fedquilt_common.datasets.harb:load",
    "harbox": "fedquilt_common.datasets.harbox:load",
    "mnist": "fedquilt_common.datasets.mnist:load",
    "stack-overflow": "fedquilt_common.datasets.stack_overflow:load",
    "uci-har": "fedquilt_common.datasets.uci_har:load",
    "ut-har": "fedquilt_common.datasets.ut_har:load",
    "visdrone": "fedquilt_common.datasets.visdrone:load",
    "widar": "fedquilt_common.datasets.widar:load",
    "wisdm-p": "fedquilt_common.datasets.wisdm_p:load",
    "wisdm-w": "fedquilt_common.datasets.wisdm_w:load",
}
UNPREPARED = frozenset({"digits"})
"""Data sets that are loaded without the cache of prepared ones, because a package holds them."""
FOLDER_VARIABLE = "FEDQUILT_DATA"


def load_dataset(name: str, folder: Path | None = None, allowed: Collection[str] = ()) -> Dataset:
    """Load a data set, through the cache of prepared ones (``datasets.cache``); it stays loaded for later calls.

    Args:
        name: of ``DATASETS``, or a user's own ``package:factory``, which is called with the folder or None.
        folder: contains a folder for each data set; None: the environment variable FEDQUILT_DATA.
        allowed: packages from which a user's own factory may come.

    Returns:
        The data set, with read-only arrays.

    Raises:
        UnknownNameError: there is no data set of this name.
        ForbiddenImportError: the factory's package is not allowed.
        DataUnavailableError: files are missing or damaged; or a user's own factory raises an error, or returns no data
            set that its learning task accepts.
    """
    return _load(name, folder or data_folder(), tuple(sorted(allowed)))


def data_folder() -> Path | None:
    """Folder that contains the data sets' folders, from the environment variable FEDQUILT_DATA; None if it is unset."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


@functools.lru_cache(maxsize=3)
def _load(name: str, folder: Path | None, allowed: tuple[str, ...]) -> Dataset:
    factory = resolve(name, DATASETS, "data set", allowed)
    read = functools.partial(factory, folder)
    if name not in DATASETS:
        from fedquilt_common.datasets.own_dataset import load_own

        return _make_read_only(load_own(name, factory, folder))
    if name in UNPREPARED:
        return _make_read_only(read())
    from fedquilt_common.datasets.cache import load_prepared
    from fedquilt_common.datasets.files import dataset_folder

    return _make_read_only(load_prepared(name, dataset_folder(folder, name), read))


def _make_read_only(dataset: Dataset) -> Dataset:
    for part in (dataset.train, dataset.test):
        part.y.setflags(write=False)
        part.x.setflags(write=False)
    return dataset
