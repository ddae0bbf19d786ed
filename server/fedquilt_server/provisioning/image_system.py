"""Look at the system inside an image: which cloud-init and which Python it has. Needs no root, only e2fsprogs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_server.provisioning.partitions import ext_partition_start

_CONFIG: Final = "/etc/cloud/cloud.cfg.d"
_SEEDED: Final = re.compile(r"^[^#\n]*\bseedfrom:", re.MULTILINE)
_VERSION: Final = re.compile(
    r"^Package: (\S+)\nStatus: \S+ \S+ installed\n(?:[^\n]+\n)*?Version: (?:\d+:)?(\S+)\n", re.MULTILINE
)
_NO_CLOUD: Final = "/usr/lib/python3/dist-packages/cloudinit/sources/DataSourceNoCloud.py"
_READS: Final = "network = util.read_seeded("
"""Only versions that apply a seed's ``network-config`` have this text in ``_NO_CLOUD``."""
_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ImageSystem:
    """The installed packages of an image, as far as they matter for a card.

    Args:
        cloud_init: version of cloud-init; None without the package.
        python: version of Python, as (major, minor); None without the package.
        netplan: whether netplan is installed.
        reads_network_config: whether cloud-init reads ``network-config`` from the boot partition. Where it finds its
            files through ``seedfrom``, versions before 24.3 do not, nor do some later ones of Ubuntu.
    """

    cloud_init: str | None
    python: tuple[int, int] | None
    netplan: bool
    reads_network_config: bool


def inspect_image(image: Path) -> ImageSystem | None:
    """Return the system inside an image.

    Returns None if it cannot be found out: the image has no ext file system with Debian's packages, or the program
    ``debugfs`` is missing.
    """
    start = ext_partition_start(image)
    program = shutil.which("debugfs", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
    if start is None or program is None:
        return None
    status = _run_debugfs(program, image, start, "cat /var/lib/dpkg/status")
    versions = dict(_VERSION.findall(status))
    if not versions:
        return None
    return ImageSystem(
        versions.get("cloud-init"),
        _major_minor(versions.get("python3")),
        "netplan.io" in versions,
        not _is_seeded(program, image, start) or _READS in _run_debugfs(program, image, start, f"cat {_NO_CLOUD}"),
    )


def _is_seeded(program: str, image: Path, start: int) -> bool:
    """Return whether cloud-init finds its files through ``seedfrom``, and not by the partition's label."""
    listed = _run_debugfs(program, image, start, f"ls -p {_CONFIG}")  # lines: /INODE/MODE/USER/GROUP/NAME/SIZE/
    names = [line.split("/")[5] for line in listed.splitlines() if line.count("/") > 5]
    return any(
        _SEEDED.search(_run_debugfs(program, image, start, f"cat {_CONFIG}/{name}"))
        for name in names
        if name.endswith(".cfg")
    )


def _major_minor(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _run_debugfs(program: str, image: Path, start: int, request: str) -> str:
    """Return what debugfs prints for a request; nothing for a file that is not there."""
    done = subprocess.run(  # noqa: S603 - debugfs, with arguments of this module
        [program, "-R", request, f"{image}?offset={start}"], capture_output=True, timeout=_SECONDS, check=False
    )
    return done.stdout.decode("utf-8", "replace")
