"""Find out what an argument of ``fedquilt data inspect`` names, and collect the facts about it."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.aggregation.rebalance import ThresholdRule
from fedquilt_common.data_tools.client_samples import count_client_targets, rebalance_counts
from fedquilt_common.data_tools.folder_facts import FileFacts, describe_folder, find_sets
from fedquilt_common.data_tools.published import PUBLISHED, find_folder
from fedquilt_common.data_tools.shard_folder import MANIFEST, read_manifest
from fedquilt_common.data_tools.summaries import SetSummary, TargetGroups, count_targets, summarise_dataset
from fedquilt_common.datasets import DATASETS, load_dataset
from fedquilt_common.datasets.shard_files import read_shard, shard_name
from fedquilt_common.errors import DataUnavailableError, ExperimentError, UnknownNameError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.learning_tasks import make_learning_task
from fedquilt_common.types import Dataset
from fedquilt_common.user_imports import is_user_import, suggest

_YAML: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        sets: the data sets that could be loaded.
        problems: why others could not, by name.
        missing: published files that a folder lacks, by the name of the data set.
        files: of a folder; empty for names and experiments.
        clients: of an experiment, else the natural clients of the only data set; None without.
        what: what a group of ``clients`` is.
        title: of a figure.
    """

    sets: tuple[SetSummary, ...]
    problems: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: tuple[FileFacts, ...] = ()
    clients: TargetGroups | None = None
    what: str = "natural client"
    title: str = ""


def inspect_target(
    target: str, allowed: Collection[str], overrides: Collection[str], rebalanced: ThresholdRule | None
) -> Inspection:
    """Inspect a data set, an experiment or a folder.

    Args:
        target: a data set's name or ``package:factory``, an experiment's YAML file, or a folder.
        allowed: packages that may be imported for the data set.
        overrides: new values of the experiment's keys, such as ``data.clients=10``.
        rebalanced: count the samples of FedReb's rebalanced data sets with this threshold.

    Raises:
        UnknownNameError: nothing has this name.
        ExperimentError: the experiment is not valid, or an option needs one.
        DataUnavailableError: files are missing or damaged, and nothing could be inspected.
    """
    path = Path(target)
    if target not in DATASETS and (path.suffix in _YAML or path.is_file()):
        return _inspect_experiment(path, allowed, overrides, rebalanced)
    if overrides or rebalanced:
        raise ExperimentError(f"--set and --rebalanced need an experiment file, and {target} is none; leave them out")
    if target not in DATASETS and (path / MANIFEST).is_file():
        return _inspect_shards(path)
    if target not in DATASETS and path.is_dir():
        return _inspect_folder(path)
    if target not in DATASETS and not is_user_import(target):
        raise UnknownNameError(f"'{target}' is not a data set, and no such file or folder exists; "
                               f"{suggest(target, DATASETS)}")  # fmt: skip
    return _inspect_set(load_dataset(target, None, allowed))


def name_task(dataset: Dataset) -> str:
    """Return the name of a data set's learning task."""
    return dataset.task or make_learning_task(dataset).name


def _inspect_set(dataset: Dataset) -> Inspection:
    summary = summarise_dataset(dataset, name_task(dataset))
    return Inspection((summary,), clients=summary.natural or summary.targets, title=summary.name,
                      what="natural client" if summary.natural else "part")  # fmt: skip


def _inspect_experiment(
    path: Path, allowed: Collection[str], overrides: Collection[str], rebalanced: ThresholdRule | None
) -> Inspection:
    experiment = load_experiment(path, list(overrides))
    tools = ExperimentTools(experiment, allowed)
    if not tools.learns:
        raise ExperimentError(f"{path}: '{experiment.algorithm.name}' trains no model, so its clients have no samples")
    clients = count_client_targets(tools)
    title = f"{experiment.name}: {tools.dataset.name}, {experiment.data.partition.scheme}"
    if rebalanced:
        clients, title = rebalance_counts(clients, rebalanced), f"{title}, rebalanced to the {rebalanced}"
    summary = summarise_dataset(tools.dataset, name_task(tools.dataset))
    return Inspection((summary,), clients=clients, what="client", title=title)


def _inspect_shards(folder: Path) -> Inspection:
    """Count the samples of each client in a folder that ``fedquilt data partition`` has written."""
    manifest = read_manifest(folder)
    form = manifest.form
    names = [shard_name(client) for client in range(manifest.clients)]
    shards = [read_shard(folder / name, form) for name in names if name in manifest.files]  # none if boards have them
    groups = [(str(client), shard.train.y) for client, shard in enumerate(shards)]
    clients = count_targets(groups, form.classes, [len(shard.test) for shard in shards])
    return Inspection((), clients=clients, what="client", title=f"{manifest.experiment}: {form.name}")


def _inspect_folder(folder: Path) -> Inspection:
    """Load what can be loaded; describe the files where nothing can."""
    found, problems = list[SetSummary](), list[tuple[str, str]]()
    names = find_sets(folder)
    missing = tuple((name, lacking) for name in names if (lacking := tuple(PUBLISHED[name].find_missing(folder))))
    for name in names:
        try:
            dataset = _load_from(folder, name)
            found.append(summarise_dataset(dataset, name_task(dataset)))
        except DataUnavailableError as error:
            problems.append((name, str(error)))
    files = tuple(describe_folder(folder))
    only = found[0] if len(found) == 1 else None
    clients = (only.natural or only.targets) if only else None
    what = "natural client" if only and only.natural else "part"
    return Inspection(tuple(found), tuple(problems), missing, files, clients, what, only.name if only else "")


def _load_from(folder: Path, name: str) -> Dataset:
    """Load a data set from a folder, whatever the folder is called."""
    place = folder.resolve()
    if place.name == find_folder(name):
        return load_dataset(name, place.parent)
    with tempfile.TemporaryDirectory(prefix="fedquilt-") as named:
        link = Path(named) / find_folder(name)
        link.symlink_to(place, target_is_directory=True)
        try:
            return load_dataset(name, link.parent)
        except DataUnavailableError as error:
            raise DataUnavailableError(str(error).replace(str(link), str(folder))) from error
