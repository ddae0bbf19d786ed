"""Flower's virtual environment: created once, with the same torch and numpy as fedquilt's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """Flower's installation.

    Attributes:
        bin: folder of its programs.
        versions: versions of flwr, ray (if it is there), torch and numpy.
        missing: why the simulation cannot run; empty if it can.
    """

    bin: Path
    versions: dict[str, str]
    missing: str = ""


def prepare(folder: Path, flower: str) -> Environment:
    """Create the environment, or return the one that is there.

    Args:
        folder: where it is created.
        flower: the version of flwr.

    Raises:
        SystemExit: Python is too old, the packages cannot be installed, or torch would bring NVIDIA's packages.
    """
    if sys.version_info < (3, 11):
        raise SystemExit("flwr needs Python 3.11 or newer: run this script with another Python")
    torch, numpy = (version(name).partition("+")[0] for name in ("torch", "numpy"))
    wanted = {"flwr": flower, "torch": torch, "numpy": numpy}
    stamp, programs = folder / "installed.json", folder / "bin"
    if not stamp.exists() or json.loads(stamp.read_text())["wanted"] != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        missing = _install(programs / "python", wanted)
        stamp.write_text(json.dumps({"wanted": wanted, "missing": missing}))
    found = _versions(programs / "python")
    return Environment(programs, found, json.loads(stamp.read_text())["missing"])


def _install(python: Path, wanted: dict[str, str]) -> str:
    """Install flwr with its simulation, or without it if Ray cannot be installed; returns why then."""
    others = [f"{name}=={number}" for name, number in wanted.items() if name != "flwr"]
    complete, least = f"flwr[simulation]=={wanted['flwr']}", f"flwr=={wanted['flwr']}"
    _refuse_cuda(python, others)
    print(f"Installing {complete} {' '.join(others)}; this takes some minutes.", flush=True)
    done = _pip(python, "install", complete, *others)
    if done.returncode == 0:
        return ""
    reason = _last_error(done)
    if (done := _pip(python, "install", least, *others)).returncode:
        raise SystemExit(f"pip cannot install {least}: {_last_error(done)}. Choose another version with --flower")
    return f"flwr[simulation] cannot be installed: {reason}"


def _refuse_cuda(python: Path, packages: list[str]) -> None:
    """Stop if torch would bring gigabytes of packages for NVIDIA GPUs."""
    done = _pip(python, "install", "--dry-run", "--ignore-installed", "--report", "-", *packages)
    if done.returncode:
        raise SystemExit(f"pip cannot install {' '.join(packages)}: {_last_error(done)}")
    names = [item["metadata"]["name"] for item in json.loads(done.stdout)["install"]]
    if any(name.startswith("nvidia") for name in names):
        raise SystemExit(
            "pip would install torch for NVIDIA GPUs, which takes gigabytes: set PIP_EXTRA_INDEX_URL to the index of "
            "CPU wheels that PyTorch's installation page names"
        )


def _pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_error(done: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or done.stderr.splitlines() or ["no reason given"])[-1][:300]


def _versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages that are there."""
    code = """import importlib.metadata, json
found = {item.name: item.version for item in importlib.metadata.distributions()}
print(json.dumps({name: found[name] for name in ("flwr", "ray", "torch", "numpy") if name in found}))"""
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
