"""Makes images of SD cards like those that vendors publish."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fedquilt_server.provisioning.fat import FatPartition
from fedquilt_server.provisioning.partitions import boot_partition

SECTOR = 512
BOOT = (8192, 16384)
"""Start and length in sectors: a vendor's partition is larger, but mtools handles both in the same way."""
ROOT = 4 << 20
"""Bytes of the root partition."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
TOOLS = {name: shutil.which(name, path=PATH) for name in ("mcopy", "mkfs.vfat", "sfdisk", "mke2fs", "debugfs")}
TYPES = {"dos": ("c", "83"), "gpt": ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "L")}
WHY_NOT = (
    ""
    if all(TOOLS.values())
    else f"{', '.join(TOOLS)} are not all installed: sudo apt-get install mtools dosfstools fdisk e2fsprogs"
)


def system(
    cloud_init: str | None = "25.1.4-1", python: str = "3.11.2-1+b1", netplan: bool = True, reads: bool = True
) -> dict[str, str]:
    """Return the files of a root file system that ``flash`` looks at; Raspberry Pi OS names its seed like this."""
    versions = {"cloud-init": cloud_init, "python3": python, "netplan.io": "1.1.2-7" if netplan else None}
    package = "Package: {}\nStatus: install ok installed\nPriority: optional\nVersion: {}\nDescription: x\n\n"
    seed = "network = util.read_seeded(seedfrom)" if reads else "(md_seed, ud, vd) = util.read_seeded(seedfrom)"
    return {
        "var/lib/dpkg/status": "".join(package.format(*pair) for pair in versions.items() if pair[1]),
        "etc/cloud/cloud.cfg.d/05_logging.cfg": "# seedfrom: nothing\n",
        "etc/cloud/cloud.cfg.d/99_raspberry-pi.cfg": "datasource:\n  NoCloud:\n    seedfrom: file:///boot/firmware/\n",
        "usr/lib/python3/dist-packages/cloudinit/sources/DataSourceNoCloud.py": seed,
    }


def stock(
    path: Path, label: str = "dos", fat: bool = True, files: dict[str, str] | None = None,
    boot: tuple[int, int] = BOOT, root: dict[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write an unmodified image: a boot partition in FAT, and one for the root file system, with ``root`` in ext4."""
    first, size = boot
    types = TYPES[label]
    table = f"label: {label}\nstart={first}, size={size}, type={types[0]}\nstart={first + size}, type={types[1]}\n"
    with path.open("wb") as file:
        file.truncate((first + size) * SECTOR + ROOT)
    subprocess.run([str(TOOLS["sfdisk"]), "-q", str(path)], input=table.encode(), check=True, capture_output=True)
    if root:
        _write_root(path, (first + size) * SECTOR, root)
    if not fat:
        return path
    part = path.with_suffix(".fat")
    with part.open("wb") as file:
        file.truncate(size * SECTOR)
    subprocess.run([str(TOOLS["mkfs.vfat"]), "-n", "BOOTFS", str(part)], check=True, capture_output=True)
    with path.open("r+b") as file:
        file.seek(first * SECTOR)
        file.write(part.read_bytes())
    part.unlink()
    found = boot_partition(path)
    assert found is not None
    for name, text in (files or {}).items():
        FatPartition(path, found).write_text(name, text)
    return path


def _write_root(path: Path, start: int, root: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in root.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        options = [f"-Eoffset={start}", "-d", folder]
        words = [str(TOOLS["mke2fs"]), "-q", "-t", "ext4", *options, str(path), f"{(ROOT >> 10) - 1024}"]
        subprocess.run(words, check=True, capture_output=True)
