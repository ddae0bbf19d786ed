"""``SOURCES.json``: only what ``fedquilt data get`` downloaded is recorded as downloaded, and checked."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.file_server import FileServer, serve_files

from fedquilt_common import cli

TRAIN, VALIDATION = "EPIC_Sounds_train.csv", "EPIC_Sounds_validation.csv"
RIGHT = {f"/{TRAIN}": b"the whole file\n", f"/{VALIDATION}": b"another\n"}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files(dict(RIGHT)) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    folder = tmp_path / "epic-sounds"
    folder.mkdir()
    return folder


def read_records(folder: Path) -> Any:
    return json.loads((folder / "SOURCES.json").read_text())["files"]


def get(server: FileServer, *options: str) -> int:
    return cli.run(["data", "get", "epic-sounds", "--url", server.url("/"), *options])


def test_a_file_that_a_person_put_there_is_not_recorded(
    server: FileServer, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / TRAIN).write_bytes(b"half of the file\n")
    assert get(server) == 12  # the sound is a person's step
    printed = capsys.readouterr().out
    assert f"{TRAIN}: was there, 17 bytes; no checksum is published, and this command did not download it" in printed
    assert set(read_records(place)) == {VALIDATION}
    (place / TRAIN).unlink()
    assert get(server) == 12
    assert (place / TRAIN).read_bytes() == RIGHT[f"/{TRAIN}"]
    assert read_records(place)[TRAIN]["url"] == server.url(f"/{TRAIN}")


def test_a_download_keeps_its_origin_and_digest(
    server: FileServer, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get(server) == 12
    before = read_records(place)
    capsys.readouterr()
    assert cli.run(["data", "get", "epic-sounds", "--url", server.url("/another/"), "--json"]) == 12
    files = json.loads(capsys.readouterr().out)
    assert [(file["was_there"], file["checksum"]) for file in files] == [(True, "recorded")] * 2
    assert [file["url"] for file in files] == [server.url(f"/{TRAIN}"), server.url(f"/{VALIDATION}")]
    assert read_records(place) == before
    (place / TRAIN).unlink()
    server.files[f"/{TRAIN}"] = b"another file\n"
    assert get(server) == 5
    assert "has the digest of the first download" in capsys.readouterr().err


def test_an_empty_file_is_not_recorded(server: FileServer, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.files[f"/{TRAIN}"] = b""
    assert get(server) == 5
    assert f"{TRAIN}: the server's file is empty" in capsys.readouterr().err
    server.files[f"/{TRAIN}"] = RIGHT[f"/{TRAIN}"]
    assert get(server) == 12
    assert set(read_records(place)) == {TRAIN, VALIDATION}


def test_an_archive_that_a_person_put_there_is_unpacked_once(
    server: FileServer, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("raw/data_1600_accel_phone.txt", "x")
    folder = place.parent / "wisdm2019"
    folder.mkdir()
    (folder / "wisdm.zip").write_bytes(buffer.getvalue())
    for _ in range(2):
        assert cli.run(["data", "get", "wisdm-p", "--url", server.url("/wisdm.zip"), "--json"]) == 0
        (file,) = json.loads(capsys.readouterr().out)
        assert (file["url"], file["was_there"], file["checksum"]) == ("", True, "unknown")
        assert file["sha256"] == hashlib.sha256(buffer.getvalue()).hexdigest()
    assert server.requests == []
    assert (read_records(folder)["wisdm.zip"]["url"], sorted(path.name for path in folder.glob("[!.]*"))) == (
        "", ["SOURCES.json", "published"],
    )  # fmt: skip


def test_a_password_of_a_mirror_is_not_kept(
    server: FileServer, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = server.url("/").replace("://", "://user:secret@")
    assert cli.run(["data", "get", "epic-sounds", "--url", mirror, "--json"]) == 12
    assert read_records(place)[TRAIN]["url"] == server.url(f"/{TRAIN}")
    assert cli.run(["data", "get", "mnist", "--url", f"{mirror}a.gz"]) == 4
    printed = capsys.readouterr()
    assert "secret" not in printed.out + printed.err + (place / "SOURCES.json").read_text()
