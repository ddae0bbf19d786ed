"""The samples that the coordinator delivers to boards without the data set: one file for each client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ValidationError

from fedquilt_common.datasets.shard_files import DatasetForm, form_of, shard_name, write_samples, write_shards
from fedquilt_common.files.durable import write_durably
from fedquilt_common.types import Examples
from fedquilt_common.wire.chunks import digest_file
from fedquilt_common.wire.data_messages import DataFile, DataMessage
from fedquilt_server.lab.workbench import Workbench

MANIFEST: Final = "manifest.json"
_PUBLIC, _TEST = "public.safetensors", "test.safetensors"


class _Manifest(BaseModel):
    """What a folder of samples holds, and for which partition."""

    partition: str
    files: dict[str, DataFile]


@dataclass(frozen=True)
class Delivery:
    """What boards receive instead of having the data set.

    Attributes:
        message: the part of the run's message.
        files: path of each file by digest, of those that the coordinator publishes.
        clients: the client that a file belongs to by digest; files that all clients share are not in it.
    """

    message: DataMessage
    files: Mapping[str, Path] = field(default_factory=dict)
    clients: Mapping[str, frozenset[int]] = field(default_factory=dict)


def prepare_delivery(bench: Workbench, folder: Path) -> Delivery | None:
    """Write the files that boards receive; files of an earlier start are used again if they are intact.

    Args:
        bench: the experiment's data set, partition and public set.
        folder: where to write.

    Returns:
        The delivery; None if every board has the data set.

    Raises:
        OSError: the files cannot be written.
        ExperimentError: the partition or the noise does not suit the data set.
    """
    delivery = bench.experiment.data.delivery
    if delivery == "local" or not bench.learns:
        return None
    files = _read_intact(bench, folder) or _write(bench, folder)
    shards = [files[name] for name in map(shard_name, range(bench.experiment.data.clients)) if name in files]
    message = _describe(form_of(bench.dataset), shards, files)
    owners: dict[str, set[int]] = {}
    for client, file in enumerate(shards):
        owners.setdefault(file.digest, set()).add(client)
    return Delivery(
        message,
        {file.digest: folder / name for name, file in files.items()},
        {digest: frozenset(clients) for digest, clients in owners.items()},
    )


def _describe(form: DatasetForm, shards: list[DataFile], files: Mapping[str, DataFile]) -> DataMessage:
    return DataMessage(
        name=form.name, shape=list(form.shape), dtype=form.dtype, classes=form.classes, task=form.task,
        label_shape=list(form.label_shape), label_dtype=form.label_dtype,
        shards=shards, public=files.get(_PUBLIC), test=files.get(_TEST),
    )  # fmt: skip


def _key(bench: Workbench) -> str:
    """Return what determines the files: partition, noise, public and test samples."""
    return f"{bench.partition_digest()} {bench.public_digest()} {bench.tests_on_official_samples}"


def _read_intact(bench: Workbench, folder: Path) -> dict[str, DataFile] | None:
    try:
        manifest = _Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        intact = all(digest_file(folder / name) == file.digest for name, file in manifest.files.items())
    except (OSError, ValidationError):
        return None
    return manifest.files if intact and manifest.partition == _key(bench) else None


def _write(bench: Workbench, folder: Path) -> dict[str, DataFile]:
    shutil.rmtree(folder, ignore_errors=True)
    data, blobs = bench.experiment.data, {}
    if data.delivery == "broker":
        for blob in write_shards(folder, data.clients, bench.shard, lambda _: None):
            blobs[blob.path.name] = blob
    if data.public is not None:
        blobs[_PUBLIC] = write_samples(folder / _PUBLIC, _without_labels(bench))
    if bench.tests_on_official_samples:
        blobs[_TEST] = write_samples(folder / _TEST, bench.dataset.test)
    files = {name: DataFile(digest=blob.digest, size=blob.size) for name, blob in blobs.items()}
    content = {"partition": _key(bench), "files": {name: file.model_dump() for name, file in files.items()}}
    write_durably(folder / MANIFEST, json.dumps(content))
    return files


def _without_labels(bench: Workbench) -> Examples:
    """Return the public samples; their labels are not delivered, so all are 0."""
    form = form_of(bench.dataset)
    return Examples(bench.public, np.zeros((len(bench.public), *form.label_shape), form.label_dtype))
