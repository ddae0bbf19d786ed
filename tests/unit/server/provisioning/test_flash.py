"""Flashing: a board's image is made from a small image with a FAT partition, and every file is verified."""

from __future__ import annotations

import errno
import gzip
import json
import lzma
import os
import shutil
import subprocess
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cards import BOOT, SECTOR, WHY_NOT, stock, system

from fedquilt_common import cli
from fedquilt_common.errors import ExperimentError, ImageError
from fedquilt_common.experiment.agent_config import AgentConfig
from fedquilt_server.provisioning import flash
from fedquilt_server.provisioning.card import Card, Wifi, read_wheels
from fedquilt_server.provisioning.devices import Device
from fedquilt_server.provisioning.fat import FatPartition
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.flash import FlashResult, flash_device, flash_image, write_archive
from fedquilt_server.provisioning.flash_cli import _read_keys
from fedquilt_server.provisioning.image_system import ImageSystem
from fedquilt_server.provisioning.partitions import boot_partition

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
OLD = ImageSystem("22.4.2-1", (3, 11), netplan=True, reads_network_config=False)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@desk"


def silent(_what: str, _done: int, _total: int) -> None:
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    federation = make_federation(tmp_path_factory.mktemp("lab") / "federation", "lab", ["192.168.7.7"])
    federation.provision("pi_Kitchen.1", "pi4", "3,4")
    federation.provision("nano", "jetson-nano")
    return federation


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "requirements.txt").write_text("fedquilt[client]\n")
    for name in ("pip-1.0-py3-none-any.whl", "torch-2.0+a_very_long_local_name-cp311-cp311-linux_aarch64.whl"):
        (folder / name).write_bytes(os.urandom(70_001))
    return folder


def card(made: Federation, board: str = "pi_Kitchen.1", **changes: Any) -> Card:
    return Card(board, made.board_folder(board), **changes)


def inside(image: Path) -> FatPartition:
    partition = boot_partition(image)
    assert partition is not None
    return FatPartition(image, partition)


@pytest.mark.parametrize("label", ["dos", "gpt"])
def test_every_file_can_be_read_back(label: str, made: Federation, wheels: Path, tmp_path: Path) -> None:
    old = "console=tty1 root=PARTUUID=1-2 rootwait cfg80211.ieee80211_regdom=GB\n"
    files = {"cmdline.txt": old, "user-data": "#cloud-config\n", "a": "1"}
    image = stock(tmp_path / "stock.img", label, files=files, root=system())
    before = image.read_bytes()
    wifi = Wifi(ssid="Lab: 'net'", password="secret pass", country="DE")  # noqa: S106
    mine = card(made, wifi=wifi, wheels=wheels, user="pi", keys=(KEY,))
    steps: list[tuple[str, int, int]] = []
    done = flash_image(image, mine, tmp_path / "mine.img", lambda *now: steps.append(now))
    assert image.read_bytes() == before
    assert done.warnings == []
    partition = inside(tmp_path / "mine.img")
    user_data = yaml.safe_load(partition.read("user-data"))
    for name in ("agent.yaml", "ca.crt", "tls.crt", "tls.key"):
        assert partition.read(f"fedquilt/identity/{name}") == (mine.bundle / name).read_bytes()
    assert b"PRIVATE KEY" not in partition.read("user-data")  # cloud-init keeps copies of it
    config = AgentConfig.model_validate(yaml.safe_load(partition.read("fedquilt/identity/agent.yaml")))
    assert (config.broker, config.id, config.clients) == ("mqtts://192.168.7.7:8883", "pi_Kitchen.1", "3,4")
    assert user_data["hostname"] == "pi-kitchen-1"
    assert user_data["users"][0]["ssh_authorized_keys"] == [KEY]
    assert "install.sh" in user_data["runcmd"][-1][-1]
    assert "ssh" in user_data["runcmd"][0][-1]
    assert (tmp_path / "mine.img").stat().st_mode & 0o077 == 0  # it contains a key
    network = yaml.safe_load(partition.read("network-config"))
    assert network["wifis"]["wlan0"]["access-points"] == {"Lab: 'net'": {"password": "secret pass"}}
    meta = yaml.safe_load(partition.read("meta-data"))
    assert meta["instance-id"].endswith(made.board("pi_Kitchen.1").serial)
    assert partition.read("cmdline.txt").decode().split() == [*old.split()[:-1], "cfg80211.ieee80211_regdom=DE"]
    assert partition.names("/fedquilt/wheels") - {"./", "../"} == {path.name for path in wheels.iterdir()}
    for path in wheels.iterdir():
        assert partition.read(f"fedquilt/wheels/{path.name}") == path.read_bytes()
    assert partition.read("fedquilt/install.sh").startswith(b"#!/bin/sh")
    assert b"WatchdogSec" in partition.read("fedquilt/fedquilt-agent.service")
    assert partition.read("a") == b"1"
    assert set(done.files) == {"user-data", "meta-data", "network-config", "cmdline.txt", *mine.install_files(),
                               *mine.wheel_files()}  # fmt: skip
    assert {what for what, _, _ in steps} >= {"unpacking stock.img", "writing files", "reading back"}
    start, size = BOOT[0] * SECTOR, BOOT[1] * SECTOR
    after = (tmp_path / "mine.img").read_bytes()
    assert (after[:start], after[start + size :]) == (before[:start], before[start + size :])


def test_cloud_inits_own_check_finds_no_fault(made: Federation, tmp_path: Path) -> None:
    program = shutil.which("cloud-init")
    if program is None:
        pytest.skip("cloud-init is not installed: sudo apt-get install cloud-init (see CONTRIBUTING.md before you do)")
    wifi = Wifi(ssid="lab", password="secret pass", country="DE")  # noqa: S106
    for name, mine in (("plain", card(made)), ("all", card(made, user="pi", keys=(KEY,), wifi=wifi))):
        path = tmp_path / name
        path.write_text(mine.user_data(OLD))
        words = [program, "schema", "--config-file", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Valid" in done.stdout
    path.write_text(path.read_text().replace("runcmd:", "runcmd: 3\nunknown:"))
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


def test_flashing_anew_replaces_what_was_there(made: Federation, wheels: Path, tmp_path: Path) -> None:
    image = stock(tmp_path / "stock.img")
    flash_image(image, card(made, wheels=wheels), tmp_path / "one.img", silent)
    first = flash_image(tmp_path / "one.img", card(made), tmp_path / "two.img", silent)
    assert "wheels/" not in inside(tmp_path / "two.img").names("/fedquilt")
    assert any("has no wheelhouse" in warning for warning in first.warnings)
    again = flash_image(image, card(made), tmp_path / "two.img", silent)
    assert again.files == first.files


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_packed_images(suffix: str, pack: Any, made: Federation, tmp_path: Path) -> None:
    image = stock(tmp_path / "stock.img")
    packed = tmp_path / f"stock.img{suffix}"
    packed.write_bytes(pack(image.read_bytes()))
    flash_image(packed, card(made), tmp_path / "out.img", silent)
    assert "user-data" in inside(tmp_path / "out.img").names()
    whole = packed.read_bytes()
    packed.write_bytes(whole[:30] + b"\xff" * 40 + whole[70:])
    with pytest.raises(ImageError, match="is damaged"):
        flash_image(packed, card(made), tmp_path / "other.img", silent)
    packed.write_bytes(whole[:-500])
    with pytest.raises(ImageError, match="is damaged"):
        flash_image(packed, card(made), tmp_path / "other.img", silent)
    assert not list(tmp_path.glob("*other*"))


def test_images_that_cannot_be_used(made: Federation, wheels: Path, tmp_path: Path) -> None:
    whole = stock(tmp_path / "whole.img")
    (tmp_path / "short.img").write_bytes(whole.read_bytes()[: 8 << 20])
    (tmp_path / "none.img").write_bytes(b"no image" * 1000)
    (tmp_path / "empty.img").touch()
    gpt = stock(tmp_path / "gpt.img", "gpt").read_bytes()
    (tmp_path / "damaged.img").write_bytes(gpt[:512] + bytes(512) + gpt[1024:])
    stock(tmp_path / "linux.img", "gpt", fat=False)
    (wheels / "large.whl").write_bytes(bytes(10 << 20))
    cases = [
        ("short.img", card(made), "the file is incomplete"), ("none.img", card(made), "none.img: is not a disk image"),
        ("empty.img", card(made), "is not a disk image"), ("damaged.img", card(made), "partition table is damaged"),
        ("linux.img", card(made), "no FAT boot partition"), ("missing.img", card(made), "there is no such file"),
        ("whole.img", card(made, wheels=wheels), "MiB free, the files need"),
    ]  # fmt: skip
    for name, mine, words in cases:
        with pytest.raises(ImageError, match=words):
            flash_image(tmp_path / name, mine, tmp_path / "out.img", silent)
        assert not list(tmp_path.glob("*out.img*"))
    for suffix in ("xz", "gz", "zip", "zst", "XZ"):
        with pytest.raises(ImageError, match=rf"out.img.{suffix}: .*without compression.*out.img"):
            flash_image(whole, card(made), tmp_path / f"out.img.{suffix}", silent)
    with pytest.raises(ImageError, match="is not a file"):
        flash_image(whole, card(made), Path("/dev/null"), silent)
    with pytest.raises(ImageError, match="stock image itself"):
        flash_image(whole, card(made), whole, silent)
    assert "user-data" not in inside(whole).names()


def test_what_does_not_come_back_as_written_is_an_error(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a defective card: one bit of one file is wrong."""
    read = FatPartition.read

    def wrong(self: FatPartition, path: str) -> bytes:
        found = read(self, path)
        return found if path != "meta-data" else bytes([found[0] ^ 1]) + found[1:]

    monkeypatch.setattr(FatPartition, "read", wrong)
    with pytest.raises(ImageError, match="meta-data is not what was written"):
        flash_image(stock(tmp_path / "stock.img"), card(made), tmp_path / "out.img", silent)
    assert not (tmp_path / "out.img").exists()


def test_without_mtools_it_says_what_to_install(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = stock(tmp_path / "stock.img")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="install mtools"):
        flash_image(image, card(made), tmp_path / "out.img", silent)


# -- cards -----------------------------------------------------------------------------------------------------


def test_a_card_is_written_and_read_back(made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is used as the card. Like a real card, it is larger than the image."""
    image, place = stock(tmp_path / "stock.img"), tmp_path / "card"
    size, more = image.stat().st_size, 1 << 20
    place.write_bytes(b"\xff" * (size + more))
    device = Device(place, "Reader", size + more)
    (tmp_path / "work").mkdir()
    done = flash_device(image, card(made), device, tmp_path / "work", silent)
    assert (done.target, "user-data" in inside(place).names()) == (str(place), True)
    assert place.read_bytes()[size:] == b"\xff" * more
    with pytest.raises(ImageError, match="smaller than the image"):
        flash_device(image, card(made), Device(place, "", size - 1), tmp_path / "work", silent)
    flash_device(image, card(made), Device(place, "", size), tmp_path / "work", silent)

    def spoil(_: Any) -> None:
        with place.open("r+b") as file:
            file.seek(size - 1)
            file.write(b"!")

    monkeypatch.setattr(flash, "_drop_page_cache", spoil)
    with pytest.raises(ImageError, match="the data on the card is not what was written"):
        flash_device(image, card(made), device, tmp_path / "work", silent)


# -- archives and the command ----------------------------------------------------------------------------------


def test_jetsons_get_an_archive(made: Federation, wheels: Path, tmp_path: Path) -> None:
    for name in ("nano.tar", "nano.tar.gz"):
        done = write_archive(card(made, "nano", wheels=wheels), tmp_path / name, silent)
        with tarfile.open(tmp_path / name) as archive:
            assert set(archive.getnames()) == set(done.files)
            key = archive.getmember("fedquilt/identity/tls.key")
            content = archive.extractfile(key)
            assert content is not None
            assert content.read() == (made.board_folder("nano") / "tls.key").read_bytes()
            assert key.mode == 0o600
            assert "user-data" not in done.files  # a Jetson has no cloud-init
            assert archive.getmember("fedquilt/install.sh").mode == 0o755
            assert "fedquilt/Dockerfile" in done.files
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
        assert done.warnings == []
    warnings = write_archive(
        card(made, "nano", wifi=Wifi.model_validate({"ssid": "lab", "country": "DE"})), tmp_path / "more.tar", silent
    ).warnings
    assert warnings == ["--wifi has no effect on an archive: the board keeps its own"]


def test_a_folder_that_is_no_wheelhouse(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="make wheelhouse"):
        read_wheels(tmp_path)


@pytest.fixture
def words(made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command for a board, in a folder with an image, Wi-Fi settings, keys and wheels of another processor."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wifi.yaml").write_text("ssid: lab\npassword: long enough\ncountry: DE\n")
    (tmp_path / "abroad.yaml").write_text("ssid: lab\npassword: long enough\n")
    (tmp_path / "key.pub").write_text(KEY + "\n")
    (tmp_path / "key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "pc").mkdir()
    for name in ("requirements.txt", "pip-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / "pc" / name).touch()
    image = str(stock(tmp_path / "stock.img"))
    return ["flash", image, "--board", "pi_Kitchen.1", "--folder", str(made.folder), "--no-wheels"]


def nano_words(words: list[str]) -> list[str]:
    """The command for a board that gets an archive, without what it does about wheels."""
    return ["flash", "--board", "nano", *words[4:6], "--out", "nano.tar.gz"]


def test_the_command_writes_an_image(words: list[str], wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--wifi", "wifi.yaml", "--wheels", str(wheels), "--ssh-key", "key.pub", "--out", "out.img", "--json"]
    assert cli.run([*words[:-1], *options]) == 0
    done = FlashResult(**json.loads(capsys.readouterr().out))
    assert (done.board, done.target, "fedquilt/wheels/requirements.txt" in done.files) == (
        "pi_Kitchen.1", "out.img", True,
    )  # fmt: skip
    assert done.login == "pi@pi-kitchen-1.local"
    assert cli.run([*words, "--out", "bare.img"]) == 0
    told = capsys.readouterr()
    assert "neither you nor Ansible can log in: give --ssh-key" in " ".join(told.err.split())
    assert "creates no login" in told.out


def test_the_command_writes_an_archive(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nano = nano_words(words)
    assert cli.run(nano) == 9  # without wheels, the board could not install anything
    assert "--no-wheels" in capsys.readouterr().err
    assert cli.run([*nano, "--no-wheels"]) == 0
    assert "login" not in capsys.readouterr().out
    assert tarfile.is_tarfile(tmp_path / "nano.tar.gz")


def test_the_command_refuses_bad_options(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, nano = words[1], nano_words(words)
    assert cli.run([*words, "--out", "none/a.img"]) == 9
    assert "there is no folder none; create it" in capsys.readouterr().err
    for more, code in (
        (words, 2), ([*words, "--out", "a.img", "--device", "/dev/sdx"], 2), ([*words, "--device", image], 9),
        ([*words[:-1], "--out", "a.img", "--wheels", "nowhere"], 9), ([*words, "--out", "a.img", "--wifi", "none"], 4),
        ([*words, "--out", "a.img", "--ssh-key", "key"], 4), ([*words, "--out", "a.img", "--ssh-key", "wifi.yaml"], 4),
        ([*words[:-1], "--out", "a.img", "--wheels", "pc"], 9),
        ([*words[:3], "other", *words[4:6], "--out", "a.img"], 8),
        (["flash", "none.img", *words[2:], "--out", "a.img"], 9),
        ([*nano[:-1], "nano.img", "--no-wheels"], 9), (["flash", image, *nano[1:], "--no-wheels"], 9),
        (["flash", *words[2:], "--out", "a.img"], 9), ([*words, "--out", "a.img", "--wifi", "abroad.yaml"], 4),
    ):  # fmt: skip
        assert cli.run(more) == code, more
        assert not (tmp_path / "a.img").exists()


@pytest.mark.parametrize(
    "line", ["ssh-ed25519", "ssh-ed25519 ???? me", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP me", "ssh-rsa " + KEY[12:]]
)
def test_a_line_that_is_no_public_key(line: str, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(f"{KEY}\n{line}\n")
    with pytest.raises(ExperimentError, match=r"key.pub, line 2: is not a public SSH key; use the .pub file"):
        _read_keys(tmp_path / "key.pub")


def test_what_a_killed_command_leaves_is_ignored_by_git() -> None:
    """It holds a board's key."""
    patterns = (Path(__file__).parents[4] / ".gitignore").read_text().splitlines()
    for name in (".kitchen.img.new", ".nano.tar.gz.new", ".stock.img", "nano.tar", "nano.tgz"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name


@pytest.mark.parametrize("out", ["pi.img", "pi.tar"])
def test_an_image_that_cannot_be_written_names_its_file(
    out: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("fedquilt_server.provisioning.flash.create_private", refuse)
    image = [] if out == "pi.tar" else words[1:2]
    assert cli.run(["flash", *image, *words[2:], "--out", out]) == 9
    assert f".{out}.new" in (error := capsys.readouterr().err)
    assert "Read-only file system" in error


def test_a_card_is_not_written_without_asking(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "card"
    place.write_bytes(b"mine" * 1000)
    module = "fedquilt_server.provisioning.flash_cli"
    monkeypatch.setattr(f"{module}.removable_device", lambda path: Device(path, "Stick", 1 << 40))
    asked: list[str] = []

    def answer(question: str, **_: Any) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(f"{module}.typer.confirm", answer)
    image = str(stock(tmp_path / "stock.img"))
    words = [
        "flash",
        image,
        "--board",
        "pi_Kitchen.1",
        "--folder",
        str(made.folder),
        "--device",
        str(place),
        "--no-wheels",
    ]
    assert cli.run(words) == 9
    assert "Stick" in asked[0]
    assert place.read_bytes() == b"mine" * 1000
    place.write_bytes(bytes(16 << 20))
    assert cli.run([*words, "--yes"]) == 0
    assert len(asked) == 1
    assert "user-data" in inside(place).names()
