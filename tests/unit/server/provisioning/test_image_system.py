"""What ``flash`` finds out about the system in an image, and which cards it refuses to make for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cards import BOOT, SECTOR, WHY_NOT, stock, system

from fedquilt_common.errors import ImageError
from fedquilt_server.provisioning.card import Card, Wifi
from fedquilt_server.provisioning.fat import FatPartition
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.provisioning.flash import FlashResult, flash_image
from fedquilt_server.provisioning.image_system import ImageSystem, inspect_image
from fedquilt_server.provisioning.partitions import boot_partition

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
WIFI = Wifi(ssid="lab", password="long enough", country="DE")  # noqa: S106


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    federation = make_federation(tmp_path_factory.mktemp("lab") / "federation", "lab", ["192.168.7.7"])
    federation.provision("kitchen", "pi4")
    return federation.board_folder("kitchen")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    names = ("requirements.txt", "cryptography-1-cp311-abi3-linux_aarch64.whl", "numpy-2-cp313-cp313-linux_aarch64.whl")
    for name in names:
        (folder / name).touch()
    return folder


def write(tmp_path: Path, root: dict[str, str] | None, bundle: Path, **changes: Any) -> FlashResult:
    image = stock(tmp_path / "stock.img", root=root)
    return flash_image(image, Card("kitchen", bundle, **changes), tmp_path / "out.img", lambda *_: None)


def user_data(tmp_path: Path) -> dict[str, Any]:
    found = boot_partition(tmp_path / "out.img")
    assert found is not None
    text: dict[str, Any] = yaml.safe_load(FatPartition(tmp_path / "out.img", found).read("user-data"))
    return text


def test_the_system_is_found_in_the_image(tmp_path: Path) -> None:
    image = stock(tmp_path / "stock.img", "gpt", root=system("25.1.4-1", python="3.13.5-1"))
    assert inspect_image(image) == ImageSystem("25.1.4-1", (3, 13), netplan=True, reads_network_config=True)
    by_label = {name: text for name, text in system(reads=False).items() if "raspberry" not in name}
    found = inspect_image(stock(tmp_path / "ubuntu.img", root=by_label))
    assert found is not None
    assert found.reads_network_config
    assert inspect_image(stock(tmp_path / "bare.img")) is None


@pytest.mark.parametrize("label", ["dos", "gpt"])
def test_an_image_that_lacks_the_end_of_its_boot_partition_is_incomplete(label: str, tmp_path: Path) -> None:
    image, end = stock(tmp_path / "stock.img", label), sum(BOOT) * SECTOR
    os.truncate(image, end)
    found = boot_partition(image)
    assert found is not None
    assert (found.start, found.size) == (BOOT[0] * SECTOR, BOOT[1] * SECTOR)
    os.truncate(image, end - 1)
    with pytest.raises(ImageError, match=f"ends at byte {end}, but the file has only {end - 1} bytes"):
        boot_partition(image)


def test_an_old_cloud_init_gets_the_wifi_as_a_file_of_netplan(tmp_path: Path, bundle: Path) -> None:
    write(tmp_path, system("22.4.2-1", reads=False), bundle, wifi=WIFI)
    (file,) = user_data(tmp_path)["write_files"]
    assert (file["path"], file["permissions"]) == ("/etc/netplan/50-cloud-init.yaml", "0600")
    points = yaml.safe_load(file["content"])["network"]["wifis"]["wlan0"]["access-points"]
    assert points == {"lab": {"password": "long enough"}}
    assert any(command[-2:] == ["netplan", "apply"] for command in user_data(tmp_path)["runcmd"])
    write(tmp_path, system(), bundle, wifi=WIFI)
    assert "write_files" not in user_data(tmp_path)


@pytest.mark.parametrize(
    ("root", "changes", "words"),
    [
        (system(cloud_init=None), {}, "stock.img has no cloud-init"),
        (system("22.4.2-1", reads=False, netplan=False), {"wifi": WIFI}, r"cloud-init \(22.4.2-1\) ignores the Wi-Fi"),
    ],
)
def test_a_card_that_could_never_join_is_refused(
    root: dict[str, str], changes: dict[str, Any], words: str, tmp_path: Path, bundle: Path
) -> None:
    with pytest.raises(ImageError, match=words):
        write(tmp_path, root, bundle, **changes)
    assert not list(tmp_path.glob("*out.img*"))


def test_wheels_for_another_python_are_refused(tmp_path: Path, bundle: Path, wheels: Path) -> None:
    with pytest.raises(ImageError, match=r"has Python 3.11, but the wheelhouse .* is for 3.13: make wheelhouse"):
        write(tmp_path, system(python="3.11.2-1"), bundle, wheels=wheels)
    assert write(tmp_path, system(python="3.13.5-1"), bundle, wheels=wheels).warnings == []


def test_only_one_link_keeps_the_start_waiting(bundle: Path) -> None:
    """Where all are optional, systemd-networkd-wait-online of Debian 12 fails after two minutes."""
    for wifi, required in ((None, ["eth0"]), (WIFI, ["wlan0"])):
        config = Card("kitchen", bundle, wifi=wifi).network_config()
        links = {**config["ethernets"], **config.get("wifis", {})}
        assert [name for name, link in links.items() if not link.get("optional")] == required
