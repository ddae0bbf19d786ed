"""``fedquilt data get`` and ``list`` against a real web server."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.file_server import FileServer, answer_page, change_file, cut_after, serve_files

from fedquilt_common import cli
from fedquilt_common.data_tools import get_data
from fedquilt_common.data_tools.published import PUBLISHED, find_folder
from fedquilt_common.data_tools.sources import SOURCES, STEPS, PublishedFileSource, Unpacking
from fedquilt_common.datasets import DATASETS, UNPREPARED, load_dataset
from fedquilt_common.downloads.unpack import unpack


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as running:
        yield running


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def make_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def make_tar(files: dict[str, bytes], packing: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{packing}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def publish(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, name: str, file: str, content: bytes,
    unpack: Unpacking | None = None, known: bool = True,
) -> None:  # fmt: skip
    """Make the web server the publisher of a data set."""
    server.files[f"/{file}"] = content
    source = PublishedFileSource(
        server.url(f"/{file}"), file, hashlib.sha256(content).hexdigest() if known else None,
        len(content) if known else None, unpack,
    )  # fmt: skip
    monkeypatch.setattr(get_data, "SOURCES", {**SOURCES, name: (source,)})


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def cifar_files(top: str) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    records = [np.concatenate([[label], rng.integers(0, 256, 3072)]).astype(np.uint8) for label in range(10)]
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return {f"{top}/{name}": np.concatenate(records).tobytes() for name in names}


def test_cifar10_is_downloaded_unpacked_and_loaded(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top, archive = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
    assert SOURCES["cifar10"][0].unpack == Unpacking(top)
    publish(server, monkeypatch, "cifar10", archive, make_tar(cifar_files(top), "gz"), Unpacking(top))
    assert cli.run(["data", "get", "cifar10"]) == 0
    assert f"{archive}: downloaded" in (first := capsys.readouterr().out)
    assert f"SHA-256 as published; unpacked to {top}" in first
    assert visible(tmp_path / "cifar10") == ["SOURCES.json", top]
    assert not list(PUBLISHED["cifar10"].find_missing(tmp_path / "cifar10"))
    dataset = load_dataset("cifar10", tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (50, 10)
    assert cli.run(["data", "get", "cifar10"]) == 0
    assert f"{archive}: was there" in capsys.readouterr().out
    assert len(server.requests) == 1


def test_an_archive_in_an_archive_is_unpacked(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = {f"UCI HAR Dataset/{part}/y_{part}.txt": b"1\n" for part in ("train", "test")}
    outer = make_zip({"UCI HAR Dataset.zip": make_zip({**inner, "__MACOSX/x": b""}), "UCI HAR Dataset.names": b"x"})
    publish(server, monkeypatch, "uci-har", "uci-har.zip", outer, SOURCES["uci-har"][0].unpack)
    assert cli.run(["data", "get", "uci-har"]) == 0
    assert visible(tmp_path / "uci-har") == ["SOURCES.json", "UCI HAR Dataset"]
    assert (tmp_path / "uci-har" / "UCI HAR Dataset" / "train" / "y_train.txt").read_bytes() == b"1\n"


def test_a_single_packed_file_and_an_archive_that_loaders_read(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/m/stackoverflow.sqlite.lzma"] = lzma.compress(b"database", lzma.FORMAT_ALONE)
    server.files["/m/stackoverflow.word_count.tar.bz2"] = bz2.compress(b"another file than TensorFlow Federated's")
    assert cli.run(["data", "get", "stack-overflow", "--url", server.url("/m/")]) == 5
    assert "stackoverflow.word_count.tar.bz2: the downloaded file has the SHA-256" in capsys.readouterr().err
    folder = tmp_path / "stack-overflow"
    assert (folder / "stackoverflow.sqlite").read_bytes() == b"database"
    assert not (folder / "stackoverflow.word_count.tar.bz2").exists()


def test_a_file_without_a_published_checksum_is_recorded_and_checked_from_then_on(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = SOURCES["wisdm-p"][0]
    first = make_zip({"wisdm-dataset.zip": make_zip({"raw/data_1600_accel_phone.txt": b"x"})})
    server.files["/mirror.zip"] = first
    command = ["data", "get", "wisdm-p", "--url", server.url("/mirror.zip")]
    assert cli.run(command) == 0
    digest = hashlib.sha256(first).hexdigest()
    assert f"no checksum is published, so its SHA-256 {digest} is recorded" in capsys.readouterr().out
    records = json.loads((tmp_path / "wisdm2019" / "SOURCES.json").read_text())["files"]
    assert records == {
        archive.name: {"url": command[-1], "sha256": digest, "size": len(first), "unpacked": "published"}
    }
    (tmp_path / "wisdm2019" / "published" / "wisdm-dataset.zip").unlink()
    (tmp_path / "wisdm2019" / "published").rmdir()
    server.files["/mirror.zip"] = make_zip({"other": b"y"})
    assert cli.run(command) == 5
    assert f"instead of {digest}" in (err := capsys.readouterr().err)
    assert f"{tmp_path}/wisdm2019/SOURCES.json has the digest of the first download" in err
    server.files["/mirror.zip"] = first
    assert cli.run(command) == 0
    assert (tmp_path / "wisdm2019" / "published" / "wisdm-dataset.zip").is_file()


def test_a_damaged_manifest_is_named(server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wisdm2019").mkdir()
    (tmp_path / "wisdm2019" / "SOURCES.json").write_text('{"files": {"a": 3}}')
    assert cli.run(["data", "get", "wisdm-p", "--url", server.url("/x.zip")]) == 5
    assert "SOURCES.json: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [("widar", "Register on http://tns.thss"), ("femnist", "LEAF builds it"), ("clusterfl-imu", "imu_data_7 into")],
)
def test_a_licence_that_demands_a_click_has_an_exit_code(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["data", "get", name]) == 12
    err = capsys.readouterr().err
    assert words in err
    assert f"{tmp_path}/{name}" in err


def test_what_can_be_downloaded_comes_before_the_steps(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "validation"):
        server.files[f"/EPIC_Sounds_{part}.csv"] = b"annotation_id\n"
    assert cli.run(["data", "get", "epic-sounds", "--url", server.url("/"), "--json"]) == 12
    printed = capsys.readouterr()
    assert [file["name"] for file in json.loads(printed.out)] == ["EPIC_Sounds_train.csv", "EPIC_Sounds_validation.csv"]
    assert "EPIC-KITCHENS-100, whose licence you accept" in printed.err
    assert list(PUBLISHED["epic-sounds"].find_missing(tmp_path / "epic-sounds")) == ["EPIC_audio.hdf5, or WAV files"]


def test_a_login_page_an_unknown_name_and_a_wrong_mirror_are_errors(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [answer_page(b"<html>log in</html>")]
    for arguments, code, words in (
        (["wisdm-p", "--url", server.url("/a.zip")], 5, "answers with a web page"),
        (["wisdm"], 4, "data set 'wisdm' is unknown; did you mean 'wisdm-"),
        (["mnist", "--url", server.url("/a.gz")], 4, "the data set has 4 files; give the address of a folder, with /"),
    ):
        assert cli.run(["data", "get", *arguments]) == code
        assert words in capsys.readouterr().err
    monkeypatch.delenv("FEDQUILT_DATA")
    assert cli.run(["data", "get", "mnist"]) == 5
    assert "set FEDQUILT_DATA to a folder for data sets, or give --data" in capsys.readouterr().err


def test_what_a_package_holds_is_not_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["data", "get", "digits"]) == 0
    assert "nothing to download" in capsys.readouterr().out


@pytest.mark.parametrize("killed_in", ["add_record", "replace_durably"])
def test_killed_after_unpacking_it_unpacks_again(
    killed_in: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = "cifar-10-batches-bin"
    publish(server, monkeypatch, "cifar10", "a.tar.gz", make_tar(cifar_files(top), "gz"), Unpacking(top))
    with monkeypatch.context() as patch:
        patch.setattr(get_data, killed_in, _die)
        assert cli.run(["data", "get", "cifar10"]) == 130
    assert not (tmp_path / "cifar10" / top).exists()
    assert cli.run(["data", "get", "cifar10"]) == 0
    assert visible(tmp_path / "cifar10") == ["SOURCES.json", top]
    assert not list((tmp_path / "cifar10").glob(".*.ready"))
    assert len(server.requests) == 1


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_folder_that_another_has_unpacked_is_not_taken_for_the_archive(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top = "cifar-10-batches-bin"
    publish(server, monkeypatch, "cifar10", "a.tar.gz", make_tar(cifar_files(top), "gz"), Unpacking(top))
    (tmp_path / "cifar10" / top).mkdir(parents=True)
    assert cli.run(["data", "get", "cifar10"]) == 5
    assert f"{tmp_path}/cifar10/{top}: exists, but was not unpacked by this command" in capsys.readouterr().err
    assert (visible(tmp_path / "cifar10"), server.requests) == ([top], [])


def test_two_at_once_unpack_one_after_the_other(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wisdm-p and wisdm-w share the folder and the archive."""
    inner = make_zip({f"raw/{number}": b"x" for number in range(50)})
    server.files["/mirror.zip"] = make_zip({"wisdm-dataset.zip": inner})
    busy = threading.Lock()

    def unpack_alone(*arguments: Any, **options: Any) -> None:
        assert busy.acquire(blocking=False), "two unpack at once"
        time.sleep(0.1)
        unpack(*arguments, **options)
        busy.release()

    monkeypatch.setattr(get_data, "unpack", unpack_alone)
    found = list[get_data.ReceivedFile]()

    def get(name: str) -> None:
        found.extend(get_data.get_set(name, tmp_path, server.url("/mirror.zip"), lambda _: lambda *_: None))

    threads = [threading.Thread(target=get, args=(name,)) for name in ("wisdm-p", "wisdm-w", "wisdm-p")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.was_there for file in found) == [False, True, True]
    assert visible(tmp_path / "wisdm2019") == ["SOURCES.json", "published"]
    assert len(server.requests) == 1


def test_a_hostile_archive_is_refused_and_never_looks_finished(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = make_tar({"cifar-10-batches-bin/a": b"x", "../../evil": b"y"}, "gz")
    publish(server, monkeypatch, "cifar10", "a.tar.gz", evil, Unpacking("cifar-10-batches-bin"))
    assert cli.run(["data", "get", "cifar10"]) == 5
    assert "leads out of the folder" in capsys.readouterr().err
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "cifar10" / "cifar-10-batches-bin").exists()
    assert not (tmp_path / "cifar10" / "SOURCES.json").exists()


def test_ctrl_c_leaves_a_state_that_resumes(server: FileServer, tmp_path: Path) -> None:
    content, gate = random.Random(0).randbytes(800_000), threading.Event()
    server.files["/milan.zip"] = content

    def stall(state: FileServer, answer: Any) -> bool:
        cut_after(500_000)(state, answer)
        gate.wait(60)
        return True

    server.faults = [stall]
    command = [sys.executable, "-m", "fedquilt_common.cli", "data", "get", "casas", "--url", server.url("/")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ), text=True)
    part = tmp_path / "casas" / "milan.zip.part"
    while not part.is_file() or part.stat().st_size < 400_000:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    gate.set()
    assert (child.returncode, "Traceback" in err) == (130, False)
    held = part.stat().st_size
    assert cli.run(["data", "get", "casas", "--url", server.url("/")]) == 5  # the server has no other file
    assert (tmp_path / "casas" / "milan.zip").read_bytes() == content
    assert server.ranges[1] == f"bytes={held}-"


def test_a_mirror_that_changes_its_file_meanwhile_is_read_anew(server: FileServer, tmp_path: Path) -> None:
    server.files["/UT_HAR.zip"] = make_zip({"old": os.urandom(300_000)})
    new = make_zip({"X_train.csv": os.urandom(300_000)})
    server.faults = [cut_after(200_000), change_file("/UT_HAR.zip", new)]
    assert cli.run(["data", "get", "ut-har", "--url", server.url("/UT_HAR.zip")]) == 0
    assert (tmp_path / "wifi-csi" / "UT_HAR.zip").read_bytes() == new


def test_every_data_set_has_a_source_or_steps() -> None:
    assert set(DATASETS) - UNPREPARED == set(SOURCES) | set(STEPS)
    for name, sources in SOURCES.items():
        assert len({source.name for source in sources}) == len(sources), name
        for source in sources:
            assert source.url.startswith("https://")
            assert source.sha256 is None or len(bytes.fromhex(source.sha256)) == 32


def test_the_list_shows_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"")
    (folder / "t10k-images-idx3-ubyte.gz.part").write_bytes(b"half")
    assert cli.run(["data", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(DATASETS)
    assert (listed["mnist"]["state"], listed["mnist"]["missing"]) == (
        "incomplete", ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    )  # fmt: skip
    states = {name: (listed[name]["state"], listed[name]["get"]) for name in ("digits", "widar", "epic-sounds", "aep")}
    assert states == {
        "digits": ("there", "not needed"), "widar": ("missing", "no"), "epic-sounds": ("missing", "partly"),
        "aep": ("missing", "yes"),
    }  # fmt: skip
    assert listed["wisdm-p"]["folder"] == str(tmp_path / find_folder("wisdm-p")) == str(tmp_path / "wisdm2019")
    assert all(entry["licence"] and entry["task"] and entry["summary"] for entry in listed.values())
    assert cli.run(["data", "list"]) == 0
    assert "lacks t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte" in capsys.readouterr().out


def test_the_list_shows_what_the_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "cache"))
    for name, content in cifar_files("cifar10/cifar-10-batches-bin").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for prepared in (False, True):
        assert cli.run(["data", "list", "--json"]) == 0
        listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
        assert (listed["cifar10"]["state"], listed["cifar10"]["prepared"]) == ("there", prepared)
        assert not listed["cifar100"]["prepared"]
        assert cli.run(["data", "inspect", "cifar10"]) == 0
        capsys.readouterr()


def test_the_list_works_without_a_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("FEDQUILT_DATA")
    assert cli.run(["data", "list"]) == 0
    assert "unknown" in capsys.readouterr().out


def test_a_set_without_files_and_an_unknown_name_need_no_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDQUILT_DATA")
    assert cli.run(["data", "get", "digits"]) == 0
    assert "there is nothing to download" in capsys.readouterr().out
    assert cli.run(["data", "get", "minst"]) == 4
    assert "data set 'minst' is unknown" in capsys.readouterr().err
    assert cli.run(["data", "get", "mnist"]) == 5
    assert "set FEDQUILT_DATA" in capsys.readouterr().err
