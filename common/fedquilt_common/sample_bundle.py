"""A bundle: the samples of all clients of an experiment as files in one folder, with a manifest.

The coordinator delivers the files of a bundle, and a bundle on a web server or a drive delivers itself. The same
experiment gives the same bytes on every machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urljoin

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedquilt_common.datasets.public import digest_of
from fedquilt_common.datasets.shard_files import DatasetForm, form_of, shard_name, write_samples, write_shard
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.files.durable import write_durably
from fedquilt_common.types import Examples
from fedquilt_common.wire.chunks import Blob, digest_file
from fedquilt_common.wire.data_messages import DataFile, DataMessage

MANIFEST: Final = "manifest.json"
MOST_BYTES: Final = 64 << 20
"""Largest manifest that is read."""
_PUBLIC, _TEST = "public.safetensors", "test.safetensors"
OnDone = Callable[[int, int], None]
"""Receives the number of finished files, and of all files."""


class BundleManifest(BaseModel):
    """What a bundle holds, and for which experiment.

    Attributes:
        name: of the data set.
        samples: what determines the files: the digests of partition and noise, and of the public set, and whether the
            official test samples are in the bundle.
        files: by name; a file without ``url`` lies beside the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    name: str
    samples: str
    files: dict[str, DataFile] = Field(max_length=100_002)

    def describe(self, form: DatasetForm, clients: int, url: str | None = None) -> DataMessage:
        """Return the part of a run's message about these files.

        Args:
            form: of the samples.
            clients: number of clients.
            url: the manifest's address, if boards download the files from there; None: the coordinator has them.

        Raises:
            DataUnavailableError: the bundle lacks the samples of a client.
        """
        files = self.files if url is None else {name: _address(file, name, url) for name, file in self.files.items()}
        names = [shard_name(client) for client in range(clients)] if any(map(_is_shard, files)) else []
        missing = [name for name in names if name not in files]
        if missing:
            raise DataUnavailableError(
                f"{url or MANIFEST}: lacks {missing[0]}, and so the samples of a client; make the bundle again with "
                "`fedquilt data partition`"
            )
        return DataMessage(
            name=form.name, shape=list(form.shape), dtype=form.dtype, classes=form.classes, task=form.task,
            label_shape=list(form.label_shape), label_dtype=form.label_dtype,
            shards=[files[name] for name in names], public=files.get(_PUBLIC), test=files.get(_TEST),
        )  # fmt: skip


def _is_shard(name: str) -> bool:
    return name not in (_PUBLIC, _TEST)


def _address(file: DataFile, name: str, manifest: str) -> DataFile:
    return file.model_copy(update={"url": urljoin(manifest, file.url or name)})


def parse_manifest(content: bytes, where: str) -> BundleManifest:
    """Parse a manifest.

    Raises:
        DataUnavailableError: it is none, or is too long.
    """
    if len(content) > MOST_BYTES:
        raise DataUnavailableError(f"{where}: has {len(content)} bytes, so it is no manifest; correct the address")
    try:
        return BundleManifest.model_validate_json(content)
    except ValidationError as error:
        reason = error.errors()[0]
        raise DataUnavailableError(
            f"{where}: is no manifest of a bundle ({'.'.join(map(str, reason['loc']))}: {reason['msg']}); make the "
            "bundle again with `fedquilt data partition`"
        ) from None


def identify_samples(tools: ExperimentTools) -> str:
    """Return what determines the files of an experiment's bundle, as ``BundleManifest.samples``."""
    data = tools.experiment.data
    partition = "own" if data.delivery == "own" else tools.samples_digest()
    public = digest_of(tools.public) if data.public is not None else "none"
    return f"partition {partition} public {public} test {'yes' if tools.tests_on_official_samples else 'no'}"


def write_bundle(tools: ExperimentTools, folder: Path, on_done: OnDone = lambda _done, _all: None) -> BundleManifest:
    """Write the bundle of an experiment; files of an earlier, interrupted call are used again if they are intact.

    Args:
        tools: the experiment's data set, partition and public set.
        folder: where to write; other files in it are deleted if they belong to another experiment.
        on_done: called after each file.

    Raises:
        OSError: the files cannot be written.
        ExperimentError: the partition or the noise does not suit the data set.
        DataUnavailableError: the data set is missing or damaged.
    """
    samples = identify_samples(tools)
    intact = _read_intact(folder, samples)
    if intact is not None:
        return intact
    shutil.rmtree(folder, ignore_errors=True)
    writers, files = _writers(tools, folder), dict[str, DataFile]()
    for name, write in writers.items():
        blob = write()
        files[name] = DataFile(digest=blob.digest, size=blob.size)
        on_done(len(files), len(writers))
    manifest = BundleManifest(name=tools.dataset.name, samples=samples, files=files)
    write_durably(folder / MANIFEST, manifest.model_dump_json(indent=1, exclude_none=True))
    return manifest


def _writers(tools: ExperimentTools, folder: Path) -> Mapping[str, Callable[[], Blob]]:
    """Return a function for each file of the bundle, by the file's name."""
    data = tools.experiment.data
    writers: dict[str, Callable[[], Blob]] = {}
    for client in range(data.clients if data.delivery != "own" else 0):
        path = folder / shard_name(client)
        writers[path.name] = lambda path=path, client=client: write_shard(path, tools.shard(client))  # type: ignore[misc]
    if data.public is not None:
        writers[_PUBLIC] = lambda: write_samples(folder / _PUBLIC, _hide_labels(tools))
    if tools.tests_on_official_samples:
        writers[_TEST] = lambda: write_samples(folder / _TEST, tools.dataset.test)
    return writers


def _hide_labels(tools: ExperimentTools) -> Examples:
    """Return the public samples; their labels are not delivered, so all are 0."""
    form = form_of(tools.dataset)
    return Examples(tools.public, np.zeros((len(tools.public), *form.label_shape), form.label_dtype))


def _read_intact(folder: Path, samples: str) -> BundleManifest | None:
    """Return the manifest of a folder that holds this bundle and whose files have their digests."""
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes(), str(folder))
        intact = all(digest_file(folder / name) == file.digest for name, file in manifest.files.items())
    except (OSError, DataUnavailableError):
        return None
    return manifest if intact and manifest.samples == samples else None
