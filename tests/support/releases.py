"""Wheelhouses of releases that differ from each other as little as a test needs."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

from tests.support.boards import ROOT, run

UNITS = {name: f"fedquilt_server/provisioning/fedquilt-{name}.service" for name in ("agent", "relay")}


def wheelhouse(folder: Path, *options: str, python: str = f"{sys.version_info[0]}.{sys.version_info[1]}") -> Path:
    """Collect the wheels for a container of this machine's architecture."""
    run(sys.executable, str(ROOT / "scripts" / "wheelhouse.py"), "--arch", os.uname().machine, "--out", str(folder),
        "--python", python, *options)  # fmt: skip
    return folder


def another_release(wheels: Path, name: str, *, broken: bool = False) -> Path:
    """Copy a wheelhouse to a release whose units are described as ``name``; no program of a broken one starts."""
    folder = wheels.with_name(name)
    shutil.copytree(wheels, folder)
    (own,) = folder.glob("fedquilt-*.whl")
    old = hashlib.sha256(own.read_bytes()).hexdigest()
    describe_units(own, name)
    requirements = folder / "requirements.txt"
    text = requirements.read_text().replace(old, hashlib.sha256(own.read_bytes()).hexdigest())
    if broken:
        (paho,) = folder.glob("paho_mqtt-*.whl")
        paho.unlink()
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("paho-mqtt"))
    requirements.write_text(text)
    return folder


def describe_units(wheel: Path, description: str) -> None:
    """Replace the description in a wheel's systemd units."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    for program, unit in UNITS.items():
        changed = files[unit].replace(f"Description=fedquilt {program}".encode(), f"Description={description}".encode())
        assert changed != files[unit]
        files[unit] = changed
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
