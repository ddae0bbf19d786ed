"""The coordinator reads the manifest of a bundle on a web server, and reports what the address has instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.file_server import FileServer, answer_status, serve_files

from fedquilt_common.data_tools.shard_folder import MANIFEST, parse_manifest, write_shard_folder
from fedquilt_common.errors import DataUnavailableError, DownloadError, ExperimentError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.lab import delivery
from fedquilt_server.lab.delivery import prepare_delivery
from fedquilt_server.lab.workbench import Workbench

EXPERIMENT = Path(__file__).parents[4] / "deploy" / "experiments" / "digits-fedakd.yaml"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    write_shard_folder(Workbench(load_experiment(EXPERIMENT)), folder)
    return (folder / MANIFEST).read_text()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files({}) as running:
        yield running


def bench_of(server: FileServer) -> Workbench:
    bundle = f"data.bundle={{url: '{server.url('/manifest.json')}'}}"
    return Workbench(load_experiment(EXPERIMENT, ["data.delivery=url", bundle]))


def test_boards_receive_the_addresses_beside_the_manifest(server: FileServer, manifest: str, tmp_path: Path) -> None:
    server.files["/manifest.json"] = manifest.encode()
    delivery = prepare_delivery(bench_of(server), tmp_path)
    assert delivery is not None
    expected = parse_manifest(manifest, "manifest").files
    assert [file.digest for file in delivery.message.shards] == [
        file.digest for name, file in expected.items() if name.startswith("client-")
    ]
    assert delivery.message.public is not None
    assert delivery.message.public.url == server.url("/public.safetensors")


@pytest.mark.parametrize("prefix", ["client-", "public"])
def test_a_manifest_without_samples_that_the_experiment_needs_is_refused(
    prefix: str, server: FileServer, manifest: str, tmp_path: Path
) -> None:
    content = json.loads(manifest)
    content["files"] = {name: file for name, file in content["files"].items() if not name.startswith(prefix)}
    server.files["/manifest.json"] = json.dumps(content).encode()
    with pytest.raises(ExperimentError, match=rf"{MANIFEST}: this bundle lacks {prefix}.*safetensors"):
        prepare_delivery(bench_of(server), tmp_path)


def test_an_archive_is_not_downloaded_whole(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LARGEST_MANIFEST", 1 << 20)
    server.files["/manifest.json"] = bytes(64 << 20)
    with pytest.raises(DataUnavailableError, match=r"data\.bundle\.url: must be the address of a bundle's manifest"):
        prepare_delivery(bench_of(server), tmp_path)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_something_else_than_a_manifest_is_explained(server: FileServer, tmp_path: Path) -> None:
    server.files["/manifest.json"] = b"PK\x03\x04"
    with pytest.raises(DataUnavailableError, match=r"data\.bundle\.url: must be the address of a bundle's manifest"):
        prepare_delivery(bench_of(server), tmp_path)


def test_an_address_that_is_gone_is_reported_as_such(server: FileServer, tmp_path: Path) -> None:
    server.faults = [answer_status(404)]
    with pytest.raises(DownloadError, match="the server answers 404") as caught:
        prepare_delivery(bench_of(server), tmp_path)
    assert "must be the address" not in str(caught.value)
