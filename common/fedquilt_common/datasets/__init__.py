"""Data sets by name, one file each. Importing this package does not import numpy."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from pathlib import Path

from fedquilt_common.types import Dataset
from fedquilt_common.user_imports import resolve

DATASETS: dict[str, str] = {
    "cifar10": "fedquilt_common.datasets.cifar10:load",
    "clusterfl-imu": "fedquilt_common.datasets.clusterfl_imu:load",
    "depth": "fedquilt_common.datasets.depth:load",
    "digits": "fedquilt_common.datasets.digits:load",
    "fashion-mnist": "fedquilt_common.datasets.fashion_mnist:load",
    "harbox": "fedquilt_common.datasets.harbox:load",
    "uci-har": "fedquilt_common.datasets.uci_har:load",
}
FOLDER_VARIABLE = "FEDQUILT_DATA"


def load_dataset(name: str, folder: Path | None = None, allowed: Collection[str] = ()) -> Dataset:
    """The data set called ``name``, from its own folder below ``folder`` (default: the variable
    FEDQUILT_DATA).

    It is kept, so that later calls cost nothing, and its arrays are read-only. A user's own
    ``package:factory`` is called with the folder, or None. Raises UnknownNameError, ForbiddenImportError,
    DataUnavailableError.
    """
    return _load(name, folder or data_folder(), tuple(sorted(allowed)))


def data_folder() -> Path | None:
    """Where the data sets' folders are, if the environment says so."""
    said = os.environ.get(FOLDER_VARIABLE)
    return Path(said) if said else None


@functools.lru_cache(maxsize=3)
def _load(name: str, folder: Path | None, allowed: tuple[str, ...]) -> Dataset:
    dataset: Dataset = resolve(name, DATASETS, "data set", allowed)(folder)
    for part in (dataset.train, dataset.test):
        part.x.setflags(write=False)
        part.y.setflags(write=False)
    return dataset
