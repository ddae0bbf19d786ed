"""Files below the folder in FEDQUILT_DATA that an experiment names, with their digests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fedquilt_common.datasets import FOLDER_VARIABLE, data_folder
from fedquilt_common.datasets.blocks import read_up_to
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.data_section import LabelNoise, Partition
from fedquilt_common.experiment.experiment import Experiment

MOST_BYTES: Final = 1 << 26
"""Size above which such a file is not read, because it is read as a whole."""


def find_data_file(name: str, key: str) -> Path:
    """Return the path of a file below the folder in FEDQUILT_DATA; the file may be missing.

    Args:
        name: the path below the folder.
        key: the experiment's key that names the file, for messages.

    Raises:
        DataUnavailableError: the folder is not set.
        ExperimentError: the path leads out of the folder.
    """
    folder = data_folder()
    if folder is None:
        raise DataUnavailableError(f"{key} = {name}: set {FOLDER_VARIABLE} to the folder that contains it")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ExperimentError(f"{key} = {name}: must lie below the folder in {FOLDER_VARIABLE}")
    return path


def read_data_file(name: str, sha256: str | None, key: str) -> tuple[Path, bytes]:
    """Read a file below the folder in FEDQUILT_DATA, and check its digest.

    Args:
        name: the path below the folder.
        sha256: the digest that the file must have, in hex; None: any.
        key: the experiment's key that names the file, for messages.

    Returns:
        The file's path and its bytes.

    Raises:
        DataUnavailableError: the file cannot be read, is larger than ``MOST_BYTES``, or is another one.
        ExperimentError: the path leads out of the folder.
    """
    path = find_data_file(name, key)
    try:
        with path.open("rb") as file:
            content = read_up_to(file, MOST_BYTES + 1)
    except OSError as error:
        raise DataUnavailableError(f"{path}: cannot be read ({error.strerror}); {key} names it") from None
    if len(content) > MOST_BYTES:
        raise DataUnavailableError(f"{path}: has more than {MOST_BYTES} bytes, so it is not a file for {key}")
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataUnavailableError(
            f"{path}: its SHA-256 is {found[:12]}..., but the experiment requires {sha256[:12]}...; copy the "
            f"coordinator's file here, or remove the digest beside {key}"
        )
    return path, content


def pin_data_files(experiment: Experiment) -> Experiment:
    """Fill in the digests of the data files that the experiment names, so that every machine requires the same files.

    Digests that are set stay. A file that is missing gets none; reading it reports the error.

    Raises:
        ExperimentError: a path leads out of the folder.
    """
    data = experiment.data
    named: dict[str, Partition | LabelNoise | None] = {"partition": data.partition, "label_noise": data.label_noise}
    pinned = {
        key: section.model_copy(update={"sha256": _find_digest(section, f"data.{key}.file")})
        for key, section in named.items()
        if section is not None and section.file is not None
    }
    return experiment.model_copy(update={"data": data.model_copy(update=pinned)})


def _find_digest(section: Partition | LabelNoise, key: str) -> str | None:
    """Return the digest that the section has, else that of its file, else None."""
    if section.sha256 is not None or data_folder() is None or not find_data_file(str(section.file), key).is_file():
        return section.sha256
    return hashlib.sha256(read_data_file(str(section.file), None, key)[1]).hexdigest()
