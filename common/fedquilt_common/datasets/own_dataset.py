"""Make and check a data set with a user's own factory, which can raise any error and return anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt_common.errors import DataUnavailableError, FedquiltError
from fedquilt_common.experiment.section import MOST
from fedquilt_common.learning_tasks import make_learning_task
from fedquilt_common.learning_tasks.learning_task import LearningTask
from fedquilt_common.stored_samples import StoredSamples
from fedquilt_common.types import Dataset, Examples
from fedquilt_common.user_imports import USER_ERRORS, describe_error, describe_sys_exit, find_place, package_of


def load_own(name: str, factory: Callable[..., Any], folder: Path | None) -> Dataset:
    """Call a user's own factory, and check what it returns.

    Args:
        name: ``package:factory``, for messages.
        factory: is called with ``folder``.
        folder: contains the data sets' folders, or None.

    Raises:
        DataUnavailableError: the factory raises an error, or does not return a data set whose samples belong together
            and whose labels its learning task accepts.
        UnknownNameError: there is no learning task of the name that the data set gives.
    """
    where = f"data set '{name}'"
    try:
        dataset = factory(folder)
    except FedquiltError:
        raise
    except USER_ERRORS as error:
        if isinstance(error, SystemExit):
            raise DataUnavailableError(f"{where}: its factory {describe_sys_exit(error, package_of(name))}") from error
        if isinstance(error, TypeError) and _is_of_the_call(error):
            raise DataUnavailableError(
                f"{where}: its factory cannot be called with one argument, the folder of the data sets: "
                f"{describe_error(error)}; correct its parameters"
            ) from error
        raise DataUnavailableError(
            f"{where}: its factory raised {describe_error(error)} ({find_place(error, package_of(name))}); "
            "correct the factory"
        ) from error
    dataset = _check_dataset(dataset, where)
    return replace(dataset, classes=int(dataset.classes))


def _is_of_the_call(error: BaseException) -> bool:
    """Whether no line of the factory has run: the traceback ends where it is called."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _check_dataset(dataset: Any, where: str) -> Dataset:
    if not isinstance(dataset, Dataset):
        raise DataUnavailableError(
            f"{where}: its factory returned a {type(dataset).__name__}; it must return a fedquilt.Dataset"
        )
    if not isinstance(dataset.classes, int | np.integer) or not 0 <= dataset.classes <= MOST:
        raise DataUnavailableError(
            f"{where}: its classes are {dataset.classes!r}; give a whole number from 0 to {MOST:,}, 0 for regression"
        )
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        _check_arrays(samples, f"{where}, {part}")
    if dataset.subjects is not None and np.shape(dataset.subjects) != (len(dataset.train),):
        raise DataUnavailableError(
            f"{where}: its subjects have the shape {np.shape(dataset.subjects)}, but there are {len(dataset.train)} "
            "training samples; give one subject for each"
        )
    _check_parts(dataset, where)
    return dataset


def _check_arrays(samples: Any, where: str) -> None:
    if not isinstance(samples, Examples):
        raise DataUnavailableError(f"{where}: is a {type(samples).__name__}; make it fedquilt.Examples")
    for axis, array, kinds in (("x", samples.x, np.ndarray | StoredSamples), ("y", samples.y, np.ndarray)):
        if not isinstance(array, kinds) or array.dtype.kind not in "biuf" or array.ndim < 1:
            kind = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise DataUnavailableError(f"{where}: {axis} is {kind}; make it a numpy array of numbers, shape (n, ...)")
    if len(samples.x) != len(samples.y):
        raise DataUnavailableError(
            f"{where}: has {len(samples.x)} samples and {len(samples.y)} labels; each sample needs one label"
        )


def _check_parts(dataset: Dataset, where: str) -> None:
    """Check that both parts are alike, and that the learning task accepts their labels."""
    for axis in ("x", "y"):
        train, test = (getattr(samples, axis).shape[1:] for samples in (dataset.train, dataset.test))
        if train != test:
            raise DataUnavailableError(
                f"{where}: {axis} has the shape {('n', *train)} in train and {('n', *test)} in test; make them alike"
            )
    task = make_learning_task(dataset)
    _check_labels(task, dataset.train, f"{where}, train")
    _check_labels(task, dataset.test, f"{where}, test")


def _check_labels(task: LearningTask, samples: Examples, where: str) -> None:
    try:
        if len(samples):
            task.check(samples.y)
    except DataUnavailableError as error:
        raise DataUnavailableError(f"{where}: {error}") from None
