"""Makes images of SD cards like those that vendors publish."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from fedquilt_server.provisioning.fat import FatPartition
from fedquilt_server.provisioning.partitions import boot_partition

SECTOR = 512
BOOT = (8192, 65536)
"""Start and length in sectors."""
ROOT = 28 << 20
"""Bytes of the root partition."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
TOOLS = {name: shutil.which(name, path=PATH) for name in ("mcopy", "mkfs.vfat", "sfdisk")}
TYPES = {"dos": ("c", "83"), "gpt": ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "L")}
WHY_NOT = (
    ""
    if all(TOOLS.values())
    else "mcopy, mkfs.vfat or sfdisk is not installed: sudo apt-get install mtools dosfstools fdisk"
)


def stock(
    path: Path, label: str = "dos", fat: bool = True, files: dict[str, str] | None = None, boot: tuple[int, int] = BOOT
) -> Path:
    """Write an unmodified image: a boot partition in FAT and one for the root file system."""
    first, size = boot
    table = f"label: {label}\nstart={first}, size={size}, type={TYPES[label][0]}\ntype={TYPES[label][1]}\n"
    with path.open("wb") as file:
        file.truncate((first + size) * SECTOR + ROOT)
    subprocess.run([str(TOOLS["sfdisk"]), "-q", str(path)], input=table.encode(), check=True, capture_output=True)
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
