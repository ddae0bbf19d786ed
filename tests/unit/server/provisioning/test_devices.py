"""Devices that may be written as cards: whole, removable, not empty and not in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.errors import ImageError
from fedquilt_server.provisioning import devices
from fedquilt_server.provisioning.devices import Device, removable_device


class Machine:
    """A folder with the files in which Linux describes disks."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys, self.mounts, self.swaps = root / "sys", root / "mounts", root / "swaps"
        for name, path in (("SYS", self.sys), ("MOUNTS", self.mounts), ("SWAPS", self.swaps)):
            monkeypatch.setattr(devices, name, path)
        self.mounts.write_text("proc /proc proc rw 0 0\n")
        self.swaps.write_text("Filename Type\n")

    def disk(self, name: str, removable: str = "1", size: str = "1000", kind: str = "") -> None:
        for path, text in ((f"{name}/removable", removable), (f"{name}/size", size), (f"{name}/device/model", "Stick"),
                           (f"{name}/device/type", kind), (f"{name}/{name}1/partition", "1")):  # fmt: skip
            (self.sys / path).parent.mkdir(parents=True, exist_ok=True)
            (self.sys / path).write_text(text + "\n")
        (self.sys / f"{name}1").mkdir()
        (self.sys / f"{name}1" / "partition").write_text("1\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_removable_disk_may_be_written(machine: Machine) -> None:
    machine.disk("sdx")
    assert devices._check_disk(Path("/dev/sdx"), "sdx") == Device(Path("/dev/sdx"), "Stick", 512_000)
    machine.disk("mmcblk9", removable="0", kind="SD")
    assert devices._check_disk(Path("/dev/mmcblk9"), "mmcblk9").size == 512_000


@pytest.mark.parametrize(
    ("name", "disk", "mounts", "words"),
    [
        ("sda", {"removable": "0"}, "", "is not removable"),
        ("mmcblk0", {"removable": "0", "kind": "MMC"}, "", "is not removable"),  # soldered
        ("sdx", {}, "/dev/sdx1 /media/card vfat rw 0 0\n", r"in use \(/media/card\)"),
        ("sdx", {}, "/dev/sdx /media/card vfat rw 0 0\n", "in use"),
        ("sdx", {"size": "0"}, "", "is empty"),
        ("sdx1", {}, "", "not a whole disk"),
        ("sdy", {}, "", "not a whole disk"),
    ],
)
def test_devices_that_are_refused(name: str, disk: dict[str, str], mounts: str, words: str, machine: Machine) -> None:
    machine.disk("sdx" if name in ("sdx1", "sdy") else name, **disk)
    machine.mounts.write_text(mounts)
    with pytest.raises(ImageError, match=words):
        devices._check_disk(Path("/dev") / name, name)


def test_a_disk_that_holds_something_else_up_is_in_use(machine: Machine) -> None:
    machine.disk("sdx")
    (machine.sys / "sdx1" / "holders" / "dm-0").mkdir(parents=True)
    with pytest.raises(ImageError, match=r"in use \(dm-0\)"):
        devices._check_disk(Path("/dev/sdx"), "sdx")
    machine.disk("sdz")
    machine.swaps.write_text("Filename Type\n/dev/sdz1 partition 1 0 -2\n")
    with pytest.raises(ImageError, match=r"in use \(swap\)"):
        devices._check_disk(Path("/dev/sdz"), "sdz")


def test_files_and_names_that_are_no_devices(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, words in (("file", "is not a block device"), ("none", "lsblk")):
        with pytest.raises(ImageError, match=words):
            removable_device(tmp_path / name)
