"""The public set: samples without labels that coordinator and boards share, so that they can speak of the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets import FOLDER_VARIABLE, data_folder, load_dataset
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.sections import Public
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Dataset


def public_set(experiment: Experiment, dataset: Dataset, allowed: Collection[str] = ()) -> NDArray[Any]:
    """The samples, shape (n, *input_shape), read-only.

    Raises ExperimentError where the experiment has none, or not for this data set; DataUnavailableError for a data set
    or a file that is not there, or is not what it should be.
    """
    public = experiment.data.public
    if public is None:
        raise ExperimentError(
            f"data.public: is missing; '{experiment.algorithm.name}' exchanges what clients think of samples that all "
            "of them have; try {samples: 100}"
        )
    if public.set is None and public.file is None:
        return _sealed(dataset.train.x[own_public(experiment, dataset)])
    x = _of_file(public.file) if public.file is not None else load_dataset(str(public.set), None, allowed).train.x
    if tuple(x.shape[1:]) != dataset.input_shape or x.dtype.kind not in "biuf":
        raise ExperimentError(
            f"data.public: its samples are {x.dtype} of shape {tuple(x.shape[1:])}, those of '{dataset.name}' have "
            f"shape {dataset.input_shape}; choose others"
        )
    found = np.asarray(x[_drawn(experiment, public, len(x))], dtype=dataset.train.x.dtype)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise DataUnavailableError(f"data.public: {public.file or public.set} holds numbers that are not finite")
    return _sealed(found)


def own_public(experiment: Experiment, dataset: Dataset) -> NDArray[np.int64]:
    """The indices of those training samples that are public, ascending; none where the public set is another.

    Raises ExperimentError.
    """
    public = experiment.data.public
    if public is None or public.set is not None or public.file is not None:
        return np.zeros(0, dtype=np.int64)
    return _drawn(experiment, public, len(dataset.train))


def digest_of(x: NDArray[Any]) -> str:
    """SHA-256 in hex of the samples, of their shape and kind of number."""
    total = hashlib.sha256(f"{x.dtype.str}{x.shape}".encode())
    total.update(np.ascontiguousarray(x).data)
    return total.hexdigest()


def _drawn(experiment: Experiment, public: Public, count: int) -> NDArray[np.int64]:
    """The same on every machine."""
    wanted = count if public.samples is None else public.samples
    if count == 0:
        raise DataUnavailableError(f"data.public: {public.file or public.set or 'the training set'} has no samples")
    if wanted > count:
        raise ExperimentError(f"data.public.samples = {wanted}: there are only {count} samples; ask for fewer")
    rng = np.random.Generator(np.random.PCG64(derive_seed(experiment.seed, "public")))
    return np.sort(rng.permutation(count)[:wanted])


def _of_file(name: str) -> NDArray[Any]:
    """A memory map: what is not asked for is not read."""
    folder = data_folder()
    if folder is None:
        raise DataUnavailableError(f"data.public.file = {name}: set {FOLDER_VARIABLE} to the folder that it is in")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ExperimentError(f"data.public.file = {name}: must lie below {FOLDER_VARIABLE}")
    return _mapped(path)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        x: NDArray[Any] = np.lib.format.open_memmap(str(path), mode="r")
    except FileNotFoundError:
        raise DataUnavailableError(f"{path}: there is no such file; put the public samples there") from None
    except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        raise DataUnavailableError(f"{path}: is no array of numpy's that can be read: {error}") from None
    if x.ndim < 1:
        raise DataUnavailableError(f"{path}: must hold one array, with the samples along its first axis")
    return x


def _sealed(x: NDArray[Any]) -> NDArray[Any]:
    x.setflags(write=False)
    return x
