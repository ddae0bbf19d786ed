"""Stock images for a virtual board, shaped like Raspberry Pi OS or like Ubuntu for the Raspberry Pi."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.rootfs import DISTRIBUTIONS, RootFileSystem

SECTOR: Final = 512
BOOT_START: Final = 8192
BOOT_MIB: Final = 512
PACKAGES: Final = (
    "linux-image-cloud-amd64,systemd-sysv,systemd-resolved,systemd-timesyncd,dbus,udev,cloud-init,netplan.io,"
    "openssh-server,python3,python3-venv,sudo,iproute2,e2fsprogs,cloud-guest-utils,fdisk"
)
RELEASES: Final = {
    distribution.suite: RootFileSystem(distribution, PACKAGES)
    for distribution in DISTRIBUTIONS
    if distribution.name.startswith("Debian")
}
"""The root file systems of the Debian releases; Ubuntu has no kernel of that name."""
FSTAB: Final = "{root} / ext4 defaults,noatime 0 1\n{boot} /boot/firmware vfat defaults 0 2\n"
STOCK_FILES: Final = {
    "user-data": "#cloud-config\n",
    "meta-data": "dsmode: local\ninstance_id: stock-image\n",
    "network-config": "network:\n  version: 2\n  ethernets:\n    eth0: {dhcp4: true, optional: true}\n",
}


@dataclass(frozen=True)
class Shape:
    """What distinguishes the images of two vendors.

    Args:
        table: kind of partition table, for sfdisk.
        types: partition types of the boot and the root partition.
        label: label of the boot partition.
        cloud: configuration of cloud-init, which states where its files are.
        options: more options of the kernel's command line.
    """

    table: str
    types: tuple[str, str]
    label: str
    cloud: str
    options: str


SHAPES: Final = {
    "raspios": Shape(
        "dos", ("c", "83"), "bootfs",
        "datasource_list: [NoCloud, None]\ndatasource:\n  NoCloud:\n    seedfrom: file:///boot/firmware/\n",
        "fsck.repair=yes rootwait",
    ),
    "ubuntu": Shape(
        "gpt", ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "L"), "system-boot",
        "datasource_list: [NoCloud, None]\ndatasource:\n  NoCloud:\n    fs_label: system-boot\n",
        "rootwait fixrtc",
    ),
}  # fmt: skip
MOUNT_FIRST: Final = "[Unit]\nRequiresMountsFor=/boot/firmware\n"
"""Raspberry Pi OS mounts the boot partition before cloud-init looks into it."""
NO_RADIO: Final = "[Unit]\nJobRunningTimeoutSec=10\n"
"""The virtual board has no Wi-Fi: without this, Debian 13 waits for it as long as for an emulated disk (15 min)."""


def run(*command: str | Path, text: str | None = None) -> str:
    """Run a command and return what it prints.

    Raises:
        RuntimeError: it fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def stock_image(shape: str, release: str, cache: Path) -> Path:
    """Return a stock image; it is made if it is not in the cache (minutes, root)."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    image = cache / f"{shape}-{release}-{recipe}.img"
    if not image.exists():
        archive = RELEASES[release].make()
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = _make_image(SHAPES[shape], archive, Path(folder))
            made.replace(image)
    return image


def _make_image(shape: Shape, archive: Path, work: Path) -> Path:
    root, boot, image = work / "root", work / "boot", work / "card.img"
    for folder in (root, boot):
        folder.mkdir()
    run("tar", "-C", root, "--numeric-owner", "-xf", archive)
    disk_id = f"{int.from_bytes(os.urandom(4), 'big'):08x}"
    _configure(shape, root, disk_id)
    _fill_boot_folder(shape, root, boot, disk_id)
    size = int(run("du", "-sm", root).split()[0]) * 13 // 10 + 500
    _write_partitions(shape, image, size, disk_id)
    _write_file_systems(shape, image, root, boot, size)
    return image


def _names_of_partitions(shape: Shape, disk_id: str) -> tuple[str, str]:
    """Return how Linux finds the boot and the root partition."""
    if shape.table == "dos":
        return f"PARTUUID={disk_id}-01", f"PARTUUID={disk_id}-02"
    return f"LABEL={shape.label}", "LABEL=writable"


def _configure(shape: Shape, root: Path, disk_id: str) -> None:
    boot_name, root_name = _names_of_partitions(shape, disk_id)
    (root / "boot" / "firmware").mkdir()
    (root / "etc" / "fstab").write_text(FSTAB.format(root=root_name, boot=boot_name))
    (root / "etc" / "hostname").write_text("localhost\n")
    (root / "etc" / "machine-id").write_text("")
    (root / "etc" / "cloud" / "cloud.cfg.d" / "99_vendor.cfg").write_text(shape.cloud + "locale: C.UTF-8\n")
    drop_ins = {"sys-subsystem-net-devices-wlan0.device": NO_RADIO}
    if shape.table == "dos":
        drop_ins["cloud-init-local.service"] = MOUNT_FIRST
    for unit, text in drop_ins.items():
        folder = root / "etc" / "systemd" / "system" / f"{unit}.d"
        folder.mkdir(parents=True)
        (folder / "boot-test.conf").write_text(text)


def _fill_boot_folder(shape: Shape, root: Path, boot: Path, disk_id: str) -> None:
    """Move the kernel to the boot folder, where the board's firmware looks for it, and write the stock files."""
    for kind, name in (("vmlinuz", "vmlinuz"), ("initrd.img", "initrd.img")):
        (found,) = (root / "boot").glob(f"{kind}-*")
        shutil.move(found, boot / name)
    line = f"console=tty1 console=ttyS0,115200 root={_names_of_partitions(shape, disk_id)[1]} {shape.options}\n"
    for name, text in {**STOCK_FILES, "cmdline.txt": line}.items():
        (boot / name).write_text(text)


def _write_partitions(shape: Shape, image: Path, root_mib: int, disk_id: str) -> None:
    with image.open("wb") as file:
        file.truncate((BOOT_MIB + root_mib + 8) << 20)
    boot_sectors = BOOT_MIB << 11
    rows = [
        f"label: {shape.table}", f"label-id: 0x{disk_id}" if shape.table == "dos" else "",
        f"start={BOOT_START},size={boot_sectors},type={shape.types[0]},name={shape.label}",
        f"start={BOOT_START + boot_sectors},size={root_mib << 11},type={shape.types[1]},name=writable",
    ]  # fmt: skip
    text = "\n".join(row for row in rows if row)
    run("sfdisk", "-q", image, text=text.replace(f",name={shape.label}", "").replace(",name=writable", "")
        if shape.table == "dos" else text)  # fmt: skip


def _write_file_systems(shape: Shape, image: Path, root: Path, boot: Path, root_mib: int) -> None:
    start = BOOT_START * SECTOR
    part = image.with_suffix(".fat")
    with part.open("wb") as file:
        file.truncate(BOOT_MIB << 20)
    run("mkfs.vfat", "-F", "32", "-n", shape.label, part)
    run("mcopy", "-i", part, "-s", *sorted(boot.iterdir()), "::")
    with part.open("rb") as source, image.open("r+b") as target:
        target.seek(start)
        shutil.copyfileobj(source, target, 1 << 20)
    part.unlink()
    offset = start + (BOOT_MIB << 20)
    label = "writable" if shape.table == "gpt" else "rootfs"
    run("mke2fs", "-q", "-t", "ext4", "-L", label, "-E", f"offset={offset}", "-d", root, image, f"{root_mib}M")
