"""``fedquilt data publish``: bundles of shards, with the same bytes each time, and never half-finished."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.unit.common.data_tools.test_partition import die, visible, write

from fedquilt_common import cli
from fedquilt_common.data_tools.publish_data import publish_bundle
from fedquilt_common.data_tools.shard_folder import MANIFEST, parse_manifest, read_manifest
from fedquilt_common.datasets.shard_files import shard_name
from fedquilt_common.downloads.unpack import unpack
from fedquilt_common.errors import RunFolderError


def open_bundle(bundle: Path) -> dict[str, bytes]:
    if bundle.is_dir():
        return visible(bundle)
    unpack(bundle, bundle.with_suffix(".unpacked"))
    return visible(bundle.with_suffix(".unpacked"))


@pytest.mark.parametrize("name", ["bundle", "bundle.tar", "bundle.zip"])
def test_a_bundle_has_all_files_and_the_same_bytes_each_time(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    first, second = (publish_bundle(folder, tmp_path / place / name) for place in ("a", "b"))
    assert (first.files, first.manifest_sha256, first.sha256) == (9, second.manifest_sha256, second.sha256)
    assert first.manifest_sha256 == hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    if first.path.is_file():
        assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
        assert first.size == first.path.stat().st_size
    assert open_bundle(first.path) == visible(folder)
    with pytest.raises(RunFolderError, match="exists already"):
        publish_bundle(folder, first.path)


def test_files_with_addresses_of_their_own_have_a_manifest_that_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, links, out = write(tmp_path / "out"), tmp_path / "links.csv", tmp_path / "public" / "manifest.json"
    names = [shard_name(client) for client in range(8)]
    links.write_text("\n\n".join(f"{name}, https://drive.google.com/uc?id={name[7:12]}" for name in names))
    command = ["data", "publish", str(folder), "--addresses", str(links), "--out", str(out)]
    assert cli.run(command) == 0
    assert f"sha256: {hashlib.sha256(out.read_bytes()).hexdigest()}" in capsys.readouterr().out
    plain, addressed = read_manifest(folder), parse_manifest(out.read_text(), "manifest")
    assert addressed.partition == plain.partition
    assert {name: (file.digest, file.size) for name, file in addressed.files.items()} == {
        name: (file.digest, file.size) for name, file in plain.files.items()
    }
    assert addressed.files[names[3]].url == "https://drive.google.com/uc?id=00003"
    for text, words in (
        (f"{names[0]},https://a/b", f"has no address of {names[1]}"),
        ("a;b", ":1: 'a;b' is not name,a"),
        (f"{names[0]},http://[x", ":1: "),
        (f"{names[0]},https://a/b\n{names[0]},https://a/c", f":2: {names[0]} has an address already"),
        ("\n".join(f"{name},https://a/{name}" for name in [*names, "client-00008"]), "has no file client-00008;"),
        (f"{names[0]},https://a/b\n{names[1]},https://a/b", f":2: {names[0]} has the same address"),
        (f"{names[0]},https://a/b, shared", ":1: "),
        (f"{names[0]},https://drive.google.com/drive/folders/1a?usp=sharing", "a comma, the link of the file"),
        (f"{names[0]},https://a/b\nname,address", ":2: 'name,address' is not name,a"),
    ):
        links.write_text(text)
        assert cli.run(command) == 4
        assert words in capsys.readouterr().err


def test_addresses_as_a_spreadsheet_saves_them(tmp_path: Path) -> None:
    folder, links, out = write(tmp_path / "out"), tmp_path / "links.csv", tmp_path / "manifest.json"
    lines = ["Name,Address", *(f"{shard_name(client)},https://a/folders/{client}" for client in range(8))]
    command = ["data", "publish", str(folder), "--addresses", str(links), "--out", str(out)]
    for first in (0, 1):
        links.write_text("\r\n".join(lines[first:]) + "\r\n", encoding="utf-8-sig", newline="")
        assert cli.run(command) == 0
        assert parse_manifest(out.read_text(), "manifest").files[shard_name(0)].url == "https://a/folders/0"


def test_a_manifest_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "out")
    assert cli.run(["data", "publish", str(folder), "--addresses", str(tmp_path / "a"), "--out", str(tmp_path)]) == 4
    assert f"--out {tmp_path}: is a folder; name a file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_the_portable_form_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "out")
    portable = publish_bundle(folder, tmp_path / "portable.tar").path.read_bytes()
    assert portable[257:265] == b"ustar\x0000"
    monkeypatch.setattr("fedquilt_common.data_tools.publish_data._LARGEST_IN_USTAR", 1000)
    first, second = (publish_bundle(folder, tmp_path / place / "a.tar").path for place in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[257:265] == b"ustar  \x00"
    assert open_bundle(first) == visible(folder)


def test_the_kind_of_a_bundle_is_its_ending_in_small_or_capital_letters(tmp_path: Path) -> None:
    bundle = publish_bundle(write(tmp_path / "out"), tmp_path / "B.ZIP")
    assert (bundle.kind, zipfile.is_zipfile(bundle.path)) == ("zip", True)


def test_archives_have_no_traces_of_this_machine(tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    with tarfile.open(publish_bundle(folder, tmp_path / "a.tar").path) as archive:
        assert {(info.mtime, info.uid, info.uname, info.mode) for info in archive} == {(0, 0, "", 0o644)}
    with zipfile.ZipFile(publish_bundle(folder, tmp_path / "a.zip").path) as zipped:
        assert {(info.date_time, info.external_attr >> 16) for info in zipped.infolist()} == {
            ((1980, 1, 1, 0, 0, 0), 0o644)
        }


def test_an_interrupted_bundle_never_looks_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "out")
    for name in ("bundle", "bundle.tar"):
        with monkeypatch.context() as patch:
            patch.setattr("fedquilt_common.data_tools.publish_data.sync", die)
            patch.setattr("fedquilt_common.data_tools.publish_data.replace_durably", die)
            with pytest.raises(KeyboardInterrupt):
                publish_bundle(folder, tmp_path / name)
        assert not (tmp_path / name).exists()
        assert publish_bundle(folder, tmp_path / name).files == 9
