"""What boards without the data set receive: the samples of their clients, from the coordinator or from an address."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedquilt_common.datasets.shard_files import form_of
from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import Bundle
from fedquilt_common.sample_bundle import BundleManifest, identify_samples, parse_manifest, write_bundle
from fedquilt_common.wire.data_messages import DataMessage
from fedquilt_server.lab.workbench import Workbench


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
        OSError: the files cannot be written.
        ExperimentError: the partition does not suit the data set, or the bundle is of another experiment.
        DownloadError: the bundle's manifest cannot be downloaded.
    """
    data = bench.experiment.data
    if data.delivery == "local" or not bench.learns:
        return None
    if data.bundle is not None:
        manifest = _fetch_manifest(bench, data.bundle, folder)
        return Delivery(manifest.describe(form_of(bench.dataset), data.clients, data.bundle.url))
    manifest = write_bundle(bench, folder)
    message = manifest.describe(form_of(bench.dataset), data.clients)
    owners: dict[str, set[int]] = {}
    for client, file in enumerate(message.shards):
        owners.setdefault(file.digest, set()).add(client)
    paths = {file.digest: folder / name for name, file in manifest.files.items()}
    return Delivery(message, paths, {digest: frozenset(clients) for digest, clients in owners.items()})


def _fetch_manifest(bench: Workbench, bundle: Bundle, folder: Path) -> BundleManifest:
    path = folder / f"bundle-{hashlib.sha256(bundle.url.encode()).hexdigest()[:16]}.json"
    path.unlink(missing_ok=True)
    fetch(bundle.url, path, bundle.sha256)
    manifest = parse_manifest(path.read_bytes(), bundle.url)
    if manifest.samples != identify_samples(bench):
        raise ExperimentError(
            f"data.bundle.url = {bundle.url}: this bundle is of another experiment: its data set ({manifest.name}), "
            "seed, partition or noise differs; make it again with `fedquilt data partition` from this experiment"
        )
    return manifest
