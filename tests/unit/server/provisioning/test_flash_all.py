"""Images for a whole fleet: one unpacking, a file per board, and a second run that writes only what is missing."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cards import WHY_NOT, stock

from fedquilt_common import cli
from fedquilt_server.provisioning import flash, flash_cli
from fedquilt_server.provisioning import flash_all as flash_all_module
from fedquilt_server.provisioning.fat import FatPartition
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.partitions import boot_partition

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = stock(tmp_path_factory.mktemp("stock") / "stock.img", files={"user-data": "#cloud-config\n"})
    packed = plain.with_name("stock.img.xz")
    packed.write_bytes(lzma.compress(plain.read_bytes(), preset=0))
    return packed


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels, and a federation of three boards: one with a wireless network, one Jetson, one revoked."""
    where = tmp_path_factory.mktemp("lab")
    (where / "wifi.yaml").write_text("ssid: Lab\npassword: a long one\ncountry: DE\n")
    (where / "boards.csv").write_text("name,kind,wifi\nkitchen,pi4,wifi.yaml\nnano,jetson-nano,\ngone,pi4,\n")
    for folder in (where / flash_cli.WHEELHOUSE, where / flash_cli.JETSON_WHEELHOUSE):
        folder.mkdir(parents=True)
        (folder / "requirements.txt").write_text(f"{folder.name}\n")
        (folder / "pip-1.0-py3-none-any.whl").write_bytes(os.urandom(5000))
    federation = make_federation(where / "federation", "lab", ["localhost"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert cli.run(["provision", "--from", "boards.csv"]) == 0
    federation.revoke("gone")
    return where


@pytest.fixture
def federation(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """The federation of a copy of the template, which is the current folder."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Federation(tmp_path / "federation")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The images that were unpacked by ``flash_all`` itself."""
    calls: list[Path] = []
    unpack = flash.unpack

    def counted(image: Path, *more: Any) -> None:
        calls.append(image)
        unpack(image, *more)

    monkeypatch.setattr(flash_all_module, "unpack", counted)
    return iter([calls])


def flash_fleet(packed: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, str]:
    """Run the command; returns what became of each board."""
    capsys.readouterr()
    assert cli.run(["flash", str(packed), "--all", "--out", "cards", "--json", *options]) == 0
    return {row["board"]: row["change"] for row in json.loads(capsys.readouterr().out)}


def inside(image: Path) -> FatPartition:
    partition = boot_partition(image)
    assert partition is not None
    return FatPartition(image, partition)


def test_each_board_gets_its_own_file(
    packed: Path, federation: Federation, unpacked: Iterator[list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    federation.provision("desk", "pi4")
    assert flash_fleet(packed, capsys) == {"desk": "written", "kitchen": "written", "nano": "written"}
    assert sorted(path.name for path in Path("cards").iterdir() if not path.name.startswith(".")) == [
        "desk.img", "flashed.json", "kitchen.img", "nano.tar.gz",
    ]  # fmt: skip
    assert next(unpacked) == [packed]
    assert not Path("cards/.stock.img").exists()
    for board in ("desk", "kitchen"):
        assert f"hostname: {board}\n" in inside(Path(f"cards/{board}.img")).read("user-data").decode()
        assert stat.S_IMODE(Path(f"cards/{board}.img").stat().st_mode) == 0o600
    networks = {board: inside(Path(f"cards/{board}.img")).read("network-config") for board in ("desk", "kitchen")}
    assert b"a long one" in networks["kitchen"]
    assert b"wifis" not in networks["desk"]
    with tarfile.open("cards/nano.tar.gz") as archive:
        content = archive.extractfile("fedquilt/wheels/requirements.txt")
        assert content is not None
        assert content.read() == b"wheelhouse-jetson\n"


def test_a_second_run_writes_only_what_changed(
    packed: Path, federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    flash_fleet(packed, capsys)
    assert flash_fleet(packed, capsys) == {"kitchen": "unchanged", "nano": "unchanged"}
    federation.provision("kitchen", renew=True)
    assert flash_fleet(packed, capsys) == {"kitchen": "written", "nano": "unchanged"}
    Path("cards/nano.tar.gz").unlink()
    assert flash_fleet(packed, capsys) == {"kitchen": "unchanged", "nano": "written"}
    with Path("cards/kitchen.img").open("r+b") as image:  # a board was started from the image
        image.write(b"\0")
    assert flash_fleet(packed, capsys) == {"kitchen": "written", "nano": "unchanged"}
    (flash_cli.WHEELHOUSE / "more-1-py3-none-any.whl").write_bytes(b"new")
    assert flash_fleet(packed, capsys) == {"kitchen": "written", "nano": "unchanged"}
    assert flash_fleet(packed, capsys, "--force") == {"kitchen": "written", "nano": "written"}
    Path("cards/flashed.json").write_text("{")
    assert flash_fleet(packed, capsys) == {"kitchen": "written", "nano": "written"}


def test_a_run_that_ends_early_continues_with_the_boards_that_are_missing(
    packed: Path, federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    key = federation.board_folder("nano") / "tls.key"
    hidden = key.rename(key.with_name("hidden"))
    assert cli.run(["flash", str(packed), "--all", "--out", "cards"]) == 8
    assert "the identity of nano is incomplete" in capsys.readouterr().err
    hidden.rename(key)
    damaged = packed.with_name("damaged.img.xz")
    damaged.write_bytes(packed.read_bytes()[:-40])
    assert cli.run(["flash", str(damaged), "--all", "--out", "cards"]) == 9
    assert f"{damaged}: is damaged" in capsys.readouterr().err
    assert not Path("cards/.stock.img").exists()
    assert flash_fleet(packed, capsys) == {"kitchen": "written", "nano": "written"}


def test_git_ignores_the_folder_unless_the_owner_decides(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.revoke("kitchen")
    assert cli.run(["flash", "--all", "--out", "cards"]) == 0
    ignored = Path("cards/.gitignore")
    assert ignored.read_text() == "*\n"
    ignored.write_text("*.img\n")
    assert cli.run(["flash", "--all", "--out", "cards"]) == 0
    assert ignored.read_text() == "*.img\n"


def test_a_file_in_the_place_of_the_folder(
    packed: Path, federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cards").write_text("mine")
    assert cli.run(["flash", str(packed), "--all", "--out", "cards"]) == 9
    assert "cards is not a folder; with --all, --out names a folder" in capsys.readouterr().err
    assert Path("cards").read_text() == "mine"


def test_an_error_names_the_stock_image(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "raw.img.xz"
    image.write_bytes(lzma.compress(stock(tmp_path / "raw.img", fat=False).read_bytes()[:512] + bytes(1 << 20)))
    assert cli.run(["flash", str(image), "--all", "--out", "cards"]) == 9
    error = capsys.readouterr().err
    assert str(image) in error
    assert "stock.img" not in error


@pytest.mark.parametrize(
    "options",
    [
        ["--all"], ["--all", "--device", "/dev/null"], ["--all", "--board", "kitchen", "--out", "x"], ["--out", "x"],
        ["--all", "--out", "x", "--device", "/dev/null"],
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options: list[str], federation: Federation) -> None:
    assert cli.run(["flash", "stock.img", *options]) == 2
