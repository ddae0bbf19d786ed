#!/usr/bin/env python3
"""Collects the wheels, with hashes, that a board needs to install fedquilt without a network (``make wheelhouse``).

    python scripts/wheelhouse.py --arch aarch64 --python 3.13 [--extra client,mdns] [--without torch] [--out FOLDER]

The folder gets the wheels of fedquilt, of its requirements on such a board and of pip, and a ``requirements.txt`` with
their SHA-256 hashes for ``pip install --no-index --no-deps --require-hashes``. pip uses its own settings. From PyPI
alone, torch comes with gigabytes for NVIDIA GPUs, for aarch64 too, and the script ends with an error: name an index
with CPU-only wheels in PIP_EXTRA_INDEX_URL (see the torch installation page), or give ``--gpu`` for a machine that has
such a GPU. Leave torch out with ``--without torch`` if the board has its own, as a Jetson has. The wheels for
differential privacy and secure aggregation (the extras ``dp`` and ``secure``) are always included.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

try:
    from packaging.markers import Marker
except ModuleNotFoundError:  # pip contains a copy
    from pip._vendor.packaging.markers import Marker

PROJECT = Path(__file__).resolve().parents[1]
GLIBC = range(17, 36)
"""Minor versions of the C library whose wheels Debian 12 and Ubuntu 22.04 can load."""
BOARD = {"platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython"}
ARCHITECTURES = ("aarch64", "armv7l", "x86_64")
PRIVACY = "dp,secure"
"""The extras that each wheelhouse includes. They are small, and a board without them would need another release."""


def platforms(arch: str) -> list[str]:
    """Return pip's names of the platforms whose wheels a board of this architecture can install, the newest first."""
    return [*(f"manylinux_2_{minor}_{arch}" for minor in reversed(GLIBC)), f"manylinux2014_{arch}", f"linux_{arch}"]


def pip(*arguments: str) -> None:
    """Run pip; exit with a message if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603 - pip, with arguments of this script
    if done.returncode:
        sys.exit("wheelhouse: pip failed; see its message above, and check that wheels exist for that Python version")


def requirements(wheel: Path, arch: str, python: str, extra: str, without: Iterable[str]) -> list[str]:
    """Return the requirements of a wheel with its extras (``client,mdns``), except the projects in ``without``."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    chosen = dict.fromkeys(line for one in extra.split(",") for line in select_for_board(lines, python, arch, one))
    return [line for line in chosen if project(line) not in set(without)]


def select_for_board(lines: Iterable[str], python: str, arch: str, extra: str = "") -> list[str]:
    """Return the requirements that apply on the board, without markers: pip would evaluate them on this machine."""
    board = {"python_version": python, "platform_machine": arch, "sys_platform": "linux", "extra": extra}
    parts = [line.partition(";") for line in lines if line.strip() and not line.startswith("#")]
    return [word.strip() for word, _, marker in parts if not marker or Marker(marker).evaluate({**BOARD, **board})]


def project(text: str) -> str:
    """Return the project's name in a requirement or a wheel's file name, as PyPI writes it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]).lower()


def find_missing(folder: Path, arch: str, python: str, without: Iterable[str]) -> set[str]:
    """Return the projects that a wheel needs but the folder lacks, with those for privacy.

    pip did not choose them, because it evaluates markers on this machine. It would also add torch to Opacus, which the
    board may already have.
    """
    wheels = list(folder.glob("*.whl"))
    extras = {wheel: PRIVACY if wheel.name.startswith("fedquilt-") else "" for wheel in wheels}
    needed = {project(line) for wheel in wheels for line in requirements(wheel, arch, python, extras[wheel], without)}
    return needed - {project(wheel.name.split("-")[0]) for wheel in wheels}


def pin_wheels(folder: Path) -> str:
    """Return a requirements file with the version and hash of each wheel but pip."""
    lines = ["# Written by make wheelhouse."]
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if project(name) != "pip":
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{project(name)}=={version} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def collect(folder: Path, arch: str, python: str, extra: str, without: list[str]) -> None:
    """Download all wheels into ``folder`` and write ``requirements.txt``."""
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT))
    (own,) = folder.glob("fedquilt-*.whl")
    constraints = folder / "constraints.txt"
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(select_for_board(lines, python, arch)))
    download = (
        "download", "--quiet", "--dest", str(folder), "--only-binary=:all:", "--python-version", python,
        "--implementation", "cp", *(word for name in platforms(arch) for word in ("--platform", name)),
        "--constraint", str(constraints),
    )  # fmt: skip
    pip(*download, *requirements(own, arch, python, extra, without), "pip")
    while missing := find_missing(folder, arch, python, without):
        pip(*download, "--no-deps", *sorted(missing))
    constraints.unlink()
    (folder / "requirements.txt").write_text(pin_wheels(folder))


def describe_gpu_libraries(wheels: Iterable[Path]) -> str:
    """Return what is wrong if the wheels include NVIDIA's libraries, else an empty text."""
    sizes = [path.stat().st_size for path in wheels if path.name.startswith("nvidia_")]
    if not sizes:
        return ""
    return (
        f"wheelhouse: {len(sizes)} wheels, {sum(sizes) / 2**20:.1f} MiB, are libraries for NVIDIA GPUs that torch from "
        "PyPI requires. A Raspberry Pi cannot use them, and its boot partition is too small for them. Nothing was "
        "written. Set PIP_EXTRA_INDEX_URL to an index with CPU-only wheels (see the torch installation page), and run "
        "this again; for a machine with such a GPU, add --gpu"
    )


def main() -> None:
    """Collect the wheels and print the largest ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="aarch64", choices=ARCHITECTURES)
    parser.add_argument("--python", default="3.13", help="version on the board: 3.13 (Pi OS 13), 3.11 (Pi OS 12)")
    parser.add_argument(
        "--extra", default="client", metavar="EXTRA", choices=["client", "client,mdns", "server", "server,mdns"],
        help="what to install: client, server, or one of them with mDNS (client,mdns)",
    )  # fmt: skip
    parser.add_argument("--without", nargs="*", default=[], help="projects that the board already has, such as torch")
    parser.add_argument("--out", type=Path, help="default dist/wheelhouse-ARCH")
    parser.add_argument("--gpu", action="store_true", help="accept libraries for NVIDIA GPUs")
    given = parser.parse_args()
    out = given.out or PROJECT / "dist" / f"wheelhouse-{given.arch}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as passing:
        folder = Path(passing) / "wheels"
        folder.mkdir()
        collect(folder, given.arch, given.python, given.extra, [project(name) for name in given.without])
        if not given.gpu and (problem := describe_gpu_libraries(folder.glob("*.whl"))):
            sys.exit(problem)
        shutil.rmtree(out, ignore_errors=True)
        folder.replace(out)
    wheels = sorted(out.glob("*.whl"), key=lambda path: -path.stat().st_size)
    total = sum(path.stat().st_size for path in wheels)
    for path in wheels[:5]:
        print(f"{path.stat().st_size / 2**20:8.1f} MiB  {path.name}")
    print(f"{total / 2**20:8.1f} MiB  in {len(wheels)} wheels for Python {given.python} on {given.arch}: {out}")


if __name__ == "__main__":
    main()
