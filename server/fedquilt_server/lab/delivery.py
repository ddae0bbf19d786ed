"""What boards without the data set receive: the samples of their clients, from the coordinator or from an address."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

from fedquilt_common.data_tools.shard_folder import (
    PUBLIC_FILE,
    TEST_FILE,
    ShardManifest,
    describe_partition,
    name_files,
    parse_manifest,
    write_shard_folder,
)
from fedquilt_common.datasets.shard_files import form_of, shard_name
from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.errors import DataUnavailableError, DownloadTooLargeError, ExperimentError
from fedquilt_common.experiment.data_section import Bundle
from fedquilt_common.wire.data_messages import DataFile, DataMessage
from fedquilt_server.lab.workbench import Workbench

_LARGEST_MANIFEST: Final = 64 << 20
"""Bytes; four times those of a manifest with the most clients."""


@dataclass(frozen=True)
class Delivery:
    """What boards receive instead of having the data set.

    Attributes:
        message: the part of the run's message.
        files: path of each file by digest, of those that the coordinator publishes.
        clients: the clients that a file belongs to by digest; files that all clients share are not in it.
    """

    message: DataMessage
    files: Mapping[str, Path] = field(default_factory=dict)
    clients: Mapping[str, frozenset[int]] = field(default_factory=dict)


def prepare_delivery(bench: Workbench, folder: Path) -> Delivery | None:
    """Write the files that boards receive, or look up where they download them.

    Args:
        bench: the experiment's data set, partition and public set.
        folder: where to write; files of an earlier start are used again if they are intact.

    Returns:
        The delivery; None if every board has the data set.

    Raises:
        RunFolderError: the files cannot be written.
        ExperimentError: the partition does not suit the data set, or the bundle is of another experiment.
        DownloadError: the bundle's manifest cannot be downloaded.
        DataUnavailableError: the bundle's address is not that of a manifest.
    """
    data = bench.experiment.data
    if data.delivery == "local" or not bench.learns:
        return None
    if data.bundle is not None:
        return Delivery(_describe(bench, _fetch_manifest(bench, data.bundle, folder), data.bundle.url))
    manifest = write_shard_folder(bench, folder)
    message = _describe(bench, manifest)
    owners: dict[str, set[int]] = {}
    for client, file in enumerate(message.shards):
        owners.setdefault(file.digest, set()).add(client)
    paths = {file.digest: folder / name for name, file in manifest.files.items()}
    return Delivery(message, paths, {digest: frozenset(clients) for digest, clients in owners.items()})


def _describe(bench: Workbench, manifest: ShardManifest, url: str | None = None) -> DataMessage:
    """Return the part of the run's message.

    Args:
        bench: the experiment's data set.
        manifest: of the files.
        url: the manifest's address, if boards download the files beside it; None: the coordinator has them.
    """
    files = {
        name: DataFile(
            digest=file.digest, size=file.size, url=urljoin(url, file.url or name) if url is not None else None
        )
        for name, file in manifest.files.items()
    }
    form, names = form_of(bench.dataset), [shard_name(client) for client in range(manifest.clients)]
    return DataMessage(
        name=form.name, shape=list(form.shape), dtype=form.dtype, classes=form.classes, task=form.task,
        label_shape=list(form.label_shape), label_dtype=form.label_dtype,
        shards=[files[name] for name in names if name in files],
        public=files.get(PUBLIC_FILE), test=files.get(TEST_FILE),
    )  # fmt: skip


def _fetch_manifest(bench: Workbench, bundle: Bundle, folder: Path) -> ShardManifest:
    manifest = _download_manifest(bundle, folder)
    if manifest.partition != describe_partition(bench) or manifest.clients != bench.experiment.data.clients:
        raise ExperimentError(
            f"data.bundle.url = {bundle.url}: this bundle is of another experiment ({manifest.experiment}): its data "
            "set, seed, partition, noise or scale (data.normalise) differs; make it again with `fedquilt data "
            "partition` from this experiment"
        )
    if lacking := [name for name in name_files(bench) if name not in manifest.files]:
        raise ExperimentError(
            f"data.bundle.url = {bundle.url}: this bundle lacks {lacking[0]}, which boards need; make it again with "
            "`fedquilt data partition` from this experiment"
        )
    return manifest


def _download_manifest(bundle: Bundle, folder: Path) -> ShardManifest:
    path = folder / f"bundle-{hashlib.sha256(bundle.url.encode()).hexdigest()[:16]}.json"
    path.unlink(missing_ok=True)  # the address may have another one now
    advice = (
        "data.bundle.url: must be the address of a bundle's manifest.json, not that of its folder or of an archive; "
        "unpack an archive on the server first"
    )
    try:
        fetch(bundle.url, path, bundle.sha256, largest=_LARGEST_MANIFEST)
    except DownloadTooLargeError as error:
        raise DataUnavailableError(f"{advice}. {error}") from error
    try:
        return parse_manifest(path.read_text(encoding="utf-8", errors="replace"), bundle.url)
    except DataUnavailableError as error:
        raise DataUnavailableError(f"{advice}. {error}") from error
