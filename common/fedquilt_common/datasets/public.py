"""The public set: samples without labels that coordinator and boards both have, for soft labels."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.data_file import find_data_file
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.data_section import Public
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Dataset


def public_set(experiment: Experiment, dataset: Dataset, allowed: Collection[str] = ()) -> NDArray[Any]:
    """Load the public set of an experiment; the same on every machine.

    Args:
        experiment: its ``data.public`` names the samples.
        dataset: the experiment's data set.
        allowed: packages from which a user's own data set may come.

    Returns:
        Read-only samples of shape (n, *input_shape), in the dtype of the data set.

    Raises:
        ExperimentError: the experiment has no public set, or one that does not fit the data set.
        DataUnavailableError: its data set or file is missing or damaged.
    """
    public = experiment.data.public
    if public is None:
        raise ExperimentError(
            f"data.public: is missing; '{experiment.algorithm.name}' exchanges predictions on public samples that all "
            "clients have; try {samples: 100}"
        )
    if public.set is None and public.file is None:
        return _make_read_only(dataset.train.x[own_public(experiment, dataset)])
    x = _read_file(public.file) if public.file is not None else load_dataset(str(public.set), None, allowed).train.x
    if tuple(x.shape[1:]) != dataset.input_shape or x.dtype.kind not in "biuf":
        raise ExperimentError(
            f"data.public: its samples are {x.dtype} of shape {tuple(x.shape[1:])}, those of '{dataset.name}' have "
            f"shape {dataset.input_shape}; choose a public set of numbers of this shape"
        )
    samples = np.asarray(x[_draw_indices(experiment, public, len(x))], dtype=dataset.train.x.dtype)
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise DataUnavailableError(
            f"data.public: {public.file or public.set} holds numbers that are not finite; repair it"
        )
    return _make_read_only(samples)


def own_public(experiment: Experiment, dataset: Dataset) -> NDArray[np.int64]:
    """Indices of the training samples that are public, ascending; none if the public set is another.

    Returns:
        int64 of shape (n,).

    Raises:
        ExperimentError: the experiment names more public samples than there are.
    """
    public = experiment.data.public
    if public is None or public.set is not None or public.file is not None:
        return np.zeros(0, dtype=np.int64)
    return _draw_indices(experiment, public, len(dataset.train))


def digest_public_set(x: NDArray[Any]) -> str:
    """SHA-256 in hex of the samples ``x``, their shape and their dtype."""
    total = hashlib.sha256(f"{x.dtype.str}{x.shape}".encode())
    total.update(np.ascontiguousarray(x).data)
    return total.hexdigest()


def _draw_indices(experiment: Experiment, public: Public, count: int) -> NDArray[np.int64]:
    """Draw the indices of the public samples, ascending; the same on every machine."""
    samples = count if public.samples is None else public.samples
    if count == 0:
        raise DataUnavailableError(
            f"data.public: {public.file or public.set or 'the training set'} has no samples; choose another"
        )
    if samples > count:
        raise ExperimentError(f"data.public.samples = {samples}: there are only {count} samples; choose fewer")
    rng = np.random.Generator(np.random.PCG64(derive_seed(experiment.seed, "public")))
    return np.sort(rng.permutation(count)[:samples])


def _read_file(name: str) -> NDArray[Any]:
    """Open the file as a memory map; only the drawn samples are read."""
    return _map_file(find_data_file(name, "data.public.file"))


def _map_file(path: Path) -> NDArray[Any]:
    try:
        x: NDArray[Any] = np.lib.format.open_memmap(str(path), mode="r")
    except FileNotFoundError:
        raise DataUnavailableError(f"{path}: there is no such file; put the public samples there") from None
    except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        raise DataUnavailableError(
            f"{path}: is not a .npy file that numpy can read: {error}; save it with numpy.save"
        ) from None
    if x.ndim < 1:
        raise DataUnavailableError(f"{path}: holds a single number; save an array of samples along its first axis")
    return x


def _make_read_only(x: NDArray[Any]) -> NDArray[Any]:
    x.setflags(write=False)
    return x
