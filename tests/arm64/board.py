"""An arm64 board of files: Debian in a folder, whose programs run under QEMU's user emulation.

``python -m tests.arm64.board`` makes it in ``dist/arm64`` from the wheelhouse, without running anything in it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import files
from pathlib import Path
from typing import Final

PROJECT = Path(__file__).resolve().parents[2]
WHEELS = PROJECT / "dist" / "wheelhouse-aarch64"
FOLDER = PROJECT / "dist" / "arm64"
SITE = "opt/site"
TOOLS = "opt/tools"
RELEASE: Final = "bookworm"
"""Its Python is 3.11, that of Debian 12."""
TESTERS = ("pytest", "pluggy", "iniconfig", "packaging")
"""Projects in pure Python, copied from this environment, that run the golden tests on the board."""

# A Raspberry Pi 4. torch reads these files to choose its kernels; those of this machine's processor crash it.
QEMU_CPU: Final = "cortex-a72"
CPU_FILES: Final = {
    "possible": "0",
    "present": "0",
    "online": "0",
    "kernel_max": "3",
    "cpu0/regs/identification/midr_el1": "0x00000000410fd083",
    "cpu0/topology/core_id": "0",
    "cpu0/topology/physical_package_id": "0",
    "cpu0/cpufreq/cpuinfo_max_freq": "1500000",
    "cpu0/cpufreq/cpuinfo_min_freq": "600000",
}
CPUINFO: Final = """\
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

Hardware\t: BCM2835
"""

# The folder has no /sys of this machine, and a /proc/cpuinfo of its own. All mounts end with the process.
ENTER: Final = """\
root=$1 checkout=$2 out=$3; shift 3
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$checkout" "$root/checkout"
mount --bind "$out" "$root/out"
mount --bind "$root/etc/cpuinfo" "$root/proc/cpuinfo"
exec "$(command -v chroot)" "$root" "$@"
"""


def find_obstacle() -> str | None:
    """Return why no emulated board can run here, and what to do; None if it can."""
    missing = [tool for tool in ("mmdebstrap", "unshare", "qemu-aarch64-static") if shutil.which(tool) is None]
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the comparison needs Linux on x86_64"
    if missing:
        return f"{', '.join(missing)} missing: apt-get install mmdebstrap util-linux qemu-user-static binfmt-support"
    if not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        return "the kernel does not start arm64 programs with QEMU: run update-binfmts --enable qemu-aarch64 as root"
    if os.geteuid() != 0:
        return "mounts and chroot need root"
    if not (WHEELS / "requirements.txt").exists():
        return f"{WHEELS} is missing: run make wheelhouse ARCH=aarch64 PYTHON_ON_BOARD=3.11"
    return None


def is_made(folder: Path = FOLDER) -> bool:
    """Whether the board holds the wheels of the present wheelhouse."""
    stamp = folder / "requirements.txt"
    return stamp.exists() and stamp.read_bytes() == (WHEELS / "requirements.txt").read_bytes()


def make(folder: Path = FOLDER) -> None:
    """Make the board anew: Debian's packages, the wheels, and what the golden tests need.

    Nothing is configured, so nothing has to run under emulation.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mmdebstrap", "--architectures=arm64", "--variant=extract", "--quiet",
         "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr", "--include=python3,libstdc++6",
         RELEASE, str(folder)],
        check=True,
    )  # fmt: skip
    for name in ("proc", "dev", "checkout", "out", "tmp", SITE, TOOLS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _write_processor(folder)
    for wheel in sorted(WHEELS.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / SITE)
    for project in TESTERS:
        _copy_project(project, folder / TOOLS)
    shutil.copy(WHEELS / "requirements.txt", folder)


def _write_processor(folder: Path) -> None:
    (folder / "etc" / "cpuinfo").write_text(CPUINFO)
    for name, text in CPU_FILES.items():
        path = folder / "sys" / "devices" / "system" / "cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _copy_project(name: str, target: Path) -> None:
    for file in files(name) or []:
        if ".." not in file.parts:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target / file)


def command(out: Path, *arguments: str, folder: Path = FOLDER) -> list[str]:
    """Return the command that runs the board's Python; ``out`` is its folder ``/out``, the project ``/checkout``."""
    enter = ["unshare", "--mount", "sh", "-euc", ENTER, "enter", str(folder), str(PROJECT), str(out)]
    return [*enter, "/usr/bin/python3", *arguments]


def environment() -> dict[str, str]:
    """Return the environment of a program on the board. The checkout's fedquilt comes before the wheelhouse's."""
    paths = ["/checkout", *(f"/checkout/{side}" for side in ("common", "server", "client")), f"/{SITE}", f"/{TOOLS}"]
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS")}
    return {
        "PATH": os.environ["PATH"], "HOME": "/out", "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1",
        "QEMU_CPU": os.environ.get("QEMU_CPU", QEMU_CPU), **threads,
    }  # fmt: skip


if __name__ == "__main__":
    if obstacle := find_obstacle():
        sys.exit(f"arm64: {obstacle}")
    if not is_made():
        make()
