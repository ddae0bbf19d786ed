"""The provenance of a measurement: the commit and the machine."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

UNMEASURED = (":(top,exclude)benchmarks/results", ":(top,exclude)docs", ":(top,exclude)*.md")


def commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit that ``folder`` has checked out, marked if files have changed that may change a measurement.

    Results and documentation do not count, so that one measurement can follow another.
    """
    found = _git(folder, "describe", "--always")
    if found.returncode:
        return "unknown"
    changed = _git(folder, "diff", "--quiet", "HEAD", "--", ":/", *UNMEASURED).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def machine(*, with_gpu: bool = False) -> dict[str, Any]:
    """Describe the machine, and its load before the measurement; ``with_gpu`` adds the GPU and torch's version."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
        **(_describe_gpu() if with_gpu else {}),
    }


def _describe_gpu() -> dict[str, Any]:
    import torch

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def append_result(history: Path, line: dict[str, Any]) -> None:
    """Append a result to a file of ``benchmarks/results``."""
    history.parent.mkdir(exist_ok=True)
    with history.open("a") as file:
        file.write(json.dumps(line) + "\n")
